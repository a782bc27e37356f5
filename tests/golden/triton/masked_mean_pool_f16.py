# cuda.looped x=64 r=32 warps=8 index=32 aligned=1 divisible=0
# signature:a0=*fp16
# signature:a1=*i64
# signature:a2=*fp16
# signature:k0=i32
# signature:k1=i32
# constexpr:X=64
# constexpr:R=32
# divisible:0=16
# divisible:1=16
# divisible:2=16
# num_warps=8
import triton
import triton.language as tl


@triton.jit
def _combine_sum(a, b):
    return a + b


@triton.jit
def nearhint_a9dfcd697a59(a0, a1, a2, k0, k1, X: tl.constexpr, R: tl.constexpr):
    pid = tl.program_id(0)
    x = pid * X + tl.arange(0, X)[:, None]
    xmask = x < (384 * k0)
    p1 = x % 384
    x_1 = x // 384
    p0 = x_1
    rlength = k1
    rbase = tl.arange(0, R)[None, :]
    v7 = tl.full([1, 1], 9.999999717180685e-10, tl.float32)
    acc5 = tl.full([X, R], 0.0, tl.float32)
    acc6 = tl.full([X, R], 0.0, tl.float32)
    for roffset in range(0, rlength, R):
        r = rbase + roffset
        r0 = r
        rmask = r < k1
        v0 = tl.load(a1 + ((k1 * p0) + r0), xmask & rmask, other=0)
        v1 = v0.to(tl.float32)
        v2 = tl.load(a0 + ((384 * k1 * p0) + p1 + (384 * r0)), xmask & rmask, other=0)
        v3 = v2.to(tl.float32)
        v4 = v3 * v1
        acc5_ = _combine_sum(acc5, tl.broadcast_to(v4, [X, R]))
        acc5 = tl.where(rmask, acc5_, acc5)
        acc6 = _combine_sum(acc6, tl.broadcast_to(v1, [X, R]))
    acc5 = tl.reduce(acc5, 1, _combine_sum, keep_dims=True)
    v5 = acc5
    acc6 = tl.reduce(acc6, 1, _combine_sum, keep_dims=True)
    v6 = acc6
    v8 = tl.maximum(v6, v7, propagate_nan=tl.PropagateNan.ALL)
    v9 = v5 / v8
    v10 = v9.to(tl.float16)
    tl.store(a2 + (tl.broadcast_to(((384 * p0) + p1), [X, 1])), tl.broadcast_to(v10, [X, 1]), xmask)
