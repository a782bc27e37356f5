# cuda.looped x=1 r=1024 warps=4 index=32 aligned=1 divisible=0 group=8 words=1
# signature:a0=*fp16
# signature:a1=*fp16
# signature:k0=i32
# signature:k1=i32
# constexpr:X=1
# constexpr:R=1024
# divisible:0=16
# divisible:1=16
# num_warps=4
import triton
import triton.language as tl


@triton.jit
def _combine_sum(a, b):
    return a + b


@triton.jit
def _combine_max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _exp_flushed(x):
    y = x * 1.4426950408889634
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=r,r", [y], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _exp_below(a, b):
    # exp(a - b) for a <= b, 1 where both are the same infinity.
    return tl.where(a == b, 1.0, _exp_flushed(a - b))


@triton.jit
def _online_softmax(m, s, x):
    # One exponential: either the sum or the new term keeps its scale.
    e = tl.where(m == x, 1.0, _exp_flushed(tl.abs(x - m) * -1.0))
    return tl.maximum(m, x, propagate_nan=tl.PropagateNan.ALL), tl.where(x > m, s * e + 1.0, s + e)


@triton.jit
def _online_softmax_group(m, s, x):
    # One exponential an element, and one a group; an infinite maximum comes later.
    last: tl.constexpr = len(x.shape) - 1
    top = tl.maximum(m, tl.reduce(x, last, _combine_max_nan), propagate_nan=tl.PropagateNan.ALL)
    base = tl.where(tl.abs(top) == float("inf"), 0.0, top)
    terms = _exp_flushed(x - tl.expand_dims(base, last))
    return top, s * _exp_flushed(m - base) + tl.reduce(terms, last, _combine_sum)


@triton.jit
def nearhint_bb7fc7a3261d(a0, a1, k0, k1, X: tl.constexpr, R: tl.constexpr):
    pid = tl.program_id(0)
    x = pid * X + tl.arange(0, X)[:, None]
    p0 = x
    rlength = (8 * (k1 // 8))
    rbase = tl.arange(0, R)[None, :]
    ebase = tl.arange(0, R // 8)[None, :]
    rzero = tl.full([X, 1], 0, tl.int32) + (k1 * p0)
    rword = (rzero + 7) // 8 * 8
    rhead = tl.minimum(rword - rzero, k1)
    rbody = (k1 - rhead) // 8 * 8
    redges = k1 - rbody
    ebefore = ebase < 8
    er = tl.where(ebefore, ebase, ebase + (rhead + rbody - 8))
    emask = (er < tl.where(ebefore, rhead, k1))
    er0 = er
    e0 = tl.load(a0 + ((k1 * p0) + er0), emask, other=float("-inf"), eviction_policy="evict_last")
    acc2 = tl.full([X, R // 8], float("-inf"), tl.float32)
    acc5 = tl.full([X, R // 8], 0.0, tl.float32)
    for roffset in range(0, rlength, R):
        rlane = rbase + roffset
        r = rhead + rlane
        r0 = r
        rmask = rlane < rbody
        v0 = tl.load(a0 + (rword + rlane), rmask, other=float("-inf"), eviction_policy="evict_last")
        v1 = v0.to(tl.float32)
        acc2, acc5 = _online_softmax_group(acc2, acc5, tl.reshape(tl.broadcast_to(v1, [X, R]), [X, R // 8, 8]))
    e1 = e0.to(tl.float32)
    acc2_, acc5_ = _online_softmax(acc2, acc5, tl.broadcast_to(e1, [X, R // 8]))
    acc2 = tl.where(emask, acc2_, acc2)
    acc5 = tl.where(emask, acc5_, acc5)
    best2 = tl.reduce(acc2, 1, _combine_max_nan, keep_dims=True)
    acc5 = acc5 * _exp_below(acc2, best2)
    acc5 = tl.reduce(acc5, 1, _combine_sum, keep_dims=True)
    acc2 = best2
    v2 = acc2
    v5 = tl.where(tl.abs(acc2) == float("inf"), float("nan"), acc5)
    e0 = tl.load(a0 + ((k1 * p0) + er0), emask, other=float("-inf"), eviction_policy="evict_first")
    rlast = (rlength - 1 - 0) // R * R + 0
    for rback in range(0, rlength, R):
        roffset = rlast - (rback - 0)
        rlane = rbase + roffset
        r = rhead + rlane
        r0 = r
        rmask = rlane < rbody
        v0 = tl.load(a0 + (rword + rlane), rmask, other=float("-inf"), eviction_policy="evict_first")
        v1 = v0.to(tl.float32)
        v3 = v1 - v2
        v4 = _exp_flushed(v3)
        v6 = v4 * (1.0 / v5)
        v7 = v6.to(tl.float16)
        tl.store(a1 + (tl.broadcast_to((rword + rlane), [X, R])), tl.broadcast_to(v7, [X, R]), rmask, eviction_policy="evict_first")
    e1 = e0.to(tl.float32)
    e3 = e1 - v2
    e4 = _exp_flushed(e3)
    e6 = e4 * (1.0 / v5)
    e7 = e6.to(tl.float16)
    tl.store(a1 + (tl.broadcast_to(((k1 * p0) + er0), [X, R // 8])), tl.broadcast_to(e7, [X, R // 8]), emask, eviction_policy="evict_first")
