"""The ATen ops that a worker may run: pure, functional, deterministic, and touching tensors alone.

An op that is not here is refused by name; nothing is looked up in torch that is not written below.
A test checks each against its schema: nothing mutable, no path, no randomness.
"""

from __future__ import annotations

from collections.abc import Mapping

_TABLE = """
__lshift__ Tensor Scalar
__rshift__ Tensor Scalar
_adaptive_avg_pool2d default
_fused_rms_norm default
_log_softmax default
_native_batch_norm_legit no_stats
_native_batch_norm_legit_no_training default
_prelu_kernel default
_reshape_alias default
_safe_softmax default
_softmax default
_to_copy default
_unsafe_index Tensor
_unsafe_view default
_weight_norm_interface default
abs default
acos default
acosh default
adaptive_max_pool2d default
add Tensor Scalar
addcdiv default
addcmul default
alias default
all default dim dims
amax default
amin default
aminmax default
any default dim dims
arange default start start_step
argmax default
argmin default
as_strided default
asin default
asinh default
atan default
atan2 default
atanh default
avg_pool2d default
avg_pool3d default
binary_cross_entropy_with_logits default
bitwise_and Tensor Scalar
bitwise_left_shift Tensor Tensor_Scalar
bitwise_not default
bitwise_or Tensor Scalar
bitwise_right_shift Tensor Tensor_Scalar
bitwise_xor Tensor Scalar
bucketize Tensor
cat default
ceil default
celu default
chunk default
clamp default Tensor
clamp_max default Tensor
clamp_min default Tensor
clone default
constant_pad_nd default
contiguous default
copy default
copysign Tensor Scalar
cos default
cosh default
count_nonzero default dim_IntList
cummax default
cummin default
cumprod default
cumsum default
deg2rad default
detach default
diagonal default
diagonal_scatter default
div Tensor Scalar Tensor_mode Scalar_mode
elu default
embedding default
embedding_dense_backward default
empty memory_format
empty_like default
eq Tensor Scalar
erf default
erfc default
exp default
exp2 default
expand default
expm1 default
eye default m
fill Scalar Tensor
flatten using_ints
flip default
floor default
floor_divide default Scalar
fmax default
fmin default
fmod Tensor Scalar
frac default
full default
full_like default
gather default
ge Tensor Scalar
gelu default
glu default
gt Tensor Scalar
hardsigmoid default
hardswish default
hardtanh default
heaviside default
histc default
huber_loss default
hypot default
index Tensor
index_add default
index_put default
index_select default
isfinite default
isin Tensor_Tensor
isinf default
isnan default
isneginf default
isposinf default
ldexp Tensor
le Tensor Scalar
leaky_relu default
lerp Scalar Tensor
lgamma default
lift_fresh default
lift_fresh_copy default
linalg_cross default
linalg_vector_norm default
linspace default
log default
log10 default
log1p default
log2 default
log_sigmoid_forward default
logaddexp default
logaddexp2 default
logcumsumexp default
logical_and default
logical_not default
logical_or default
logical_xor default
logit default
logsumexp default
lt Tensor Scalar
masked_fill Scalar Tensor
max default dim other
max_pool2d_with_indices default
max_pool3d_with_indices default
maximum default
mean default dim
min default dim other
minimum default
mish default
mse_loss default
mul Tensor Scalar
nan_to_num default
nansum default
narrow default
native_group_norm default
native_layer_norm default
ne Tensor Scalar
neg default
norm ScalarOpt_dim
new_empty default
new_full default
new_ones default
new_zeros default
ones default
ones_like default
permute default
positive default
pow Scalar Tensor_Scalar Tensor_Tensor
prod default dim_int
rad2deg default
reciprocal default
reflection_pad1d default
reflection_pad2d default
reflection_pad3d default
relu default
relu6 default
remainder Tensor Scalar Scalar_Tensor
repeat default
replication_pad1d default
replication_pad2d default
replication_pad3d default
reshape default
rms_norm default
roll default
round default decimals
rsqrt default
rsub Tensor Scalar
scalar_tensor default
scatter src value
scatter_add default
scatter_reduce two
searchsorted Tensor
select int
select_scatter default
sgn default
sigmoid default
sign default
silu default
sin default
sinc default
sinh default
slice Tensor
slice_scatter default
smooth_l1_loss default
soft_margin_loss default
softmax int
softplus default
softshrink default
special_entr default
special_xlog1py default other_scalar self_scalar
split Tensor
split_with_sizes default
sqrt default
square default
squeeze default dim dims
stack default
std correction dim
std_mean correction
sub Tensor Scalar
sum default dim_IntList
t default
tan default
tanh default
threshold default
to dtype
transpose int
tril default
triu default
true_divide Tensor
trunc default
unbind int
unflatten int
unfold default
unsafe_chunk default
unsafe_split Tensor
unsafe_split_with_sizes default
unsqueeze default
var correction dim
var_mean correction dim
view default
where self Scalar ScalarSelf ScalarOther
xlogy Tensor Scalar_Self Scalar_Other
zero default
zeros default
zeros_like default
"""

ALLOWED: Mapping[str, tuple[str, str, str]] = {
    f"aten.{name}.{overload}": ("aten", name, overload)
    for name, *overloads in (row.split() for row in _TABLE.strip().splitlines())
    for overload in overloads
} | {"prims.convert_element_type.default": ("prims", "convert_element_type", "default")}
"""The op as a Program names it, and where torch has it: namespace, name, overload."""

HALF_TO_FLOAT: Mapping[str, int] = {"aten._softmax.default": 2, "aten._log_softmax.default": 2}
"""Ops with an argument that is refused in f64 unless it is False, and its position."""
