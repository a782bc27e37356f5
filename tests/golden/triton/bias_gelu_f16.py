# cuda.pointwise x=1024 warps=4 index=32 aligned=1 divisible=0
# signature:a0=*fp16
# signature:a1=*fp16
# signature:a2=*fp16
# signature:k0=i32
# constexpr:X=1024
# divisible:0=16
# divisible:1=16
# divisible:2=16
# num_warps=4
import triton
import triton.language as tl


@triton.jit
def nearhint_b0f199b1103b(a0, a1, a2, k0, X: tl.constexpr):
    pid = tl.program_id(0)
    x = pid * X + tl.arange(0, X)
    xmask = x < (1536 * k0)
    p1 = x % 1536
    x_1 = x // 1536
    p0 = x_1
    v0 = tl.load(a0 + x, xmask, other=0)
    v1 = v0.to(tl.float32)
    v2 = tl.load(a1 + p1, xmask, other=0, eviction_policy="evict_last")
    v3 = v2.to(tl.float32)
    v4 = v1 + v3
    v5 = tl.full([1], 0.5, tl.float32)
    v6 = v4 * v5
    v7 = tl.full([1], 0.7071067690849304, tl.float32)
    v8 = v4 * v7
    v9 = tl.erf(v8)
    v10 = tl.full([1], 1.0, tl.float32)
    v11 = v9 + v10
    v12 = v6 * v11
    v13 = v12.to(tl.float16)
    tl.store(a2 + (tl.broadcast_to(x, [X])), tl.broadcast_to(v13, [X]), xmask)
