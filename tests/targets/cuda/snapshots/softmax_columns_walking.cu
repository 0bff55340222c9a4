// softmax over (8192, 8192), scratch (524288, 524288, 1024)
// grid (1, 1, 1) block (256, 1, 1) cluster (1, 1, 1)

extern "C" __global__ void kernel_softmax_clear(unsigned int* arrived, long long counts) {
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < counts) arrived[i] = 0;
}

// grid (16, 16, 1) block (8, 32, 1) cluster (1, 1, 1)

__device__ __forceinline__ float larger_float(float x, float y) {
#if __CUDA_ARCH__ >= 800
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
    return result;
#else
    return x != x || y != y ? x + y : fmaxf(x, y);
#endif
}

template <typename T> __device__ __forceinline__ T maximum(T x, T y) {
    return x != x || y != y ? x + y : fmax(x, y);
}
template <> __device__ __forceinline__ float maximum<float>(float x, float y) { return larger_float(x, y); }

__device__ __noinline__ float ordinary_quotient(float x, float divisor) { return x / divisor; }  // seldom: once in the text

__device__ __forceinline__ float inverse_for_quotients(float divisor) {
    const float size = fabsf(divisor);
    return size > 8.67361738e-19f && size < 1152921504606846976.0f ? 1.0f / divisor : __int_as_float(0x7fc00000);
}

__device__ __forceinline__ float quotient(float x, float divisor, float inverse) {
    const float first = x * inverse, size = fabsf(first);
    if (size > 9.09494702e-13f && size < 1099511627776.0f) {
        const float second = __fmaf_rn(__fmaf_rn(-first, divisor, x), inverse, first);
        return __fmaf_rn(__fmaf_rn(-second, divisor, x), inverse, second);
    }
    return x == 0.0f && size == 0.0f ? first : ordinary_quotient(x, divisor);
}

template <typename T> __device__ __forceinline__ T rescaling_reference(T top) {
    return top == -T(__int_as_float(0x7f800000)) ? T(0) : top;
}

template <typename T> __device__ __forceinline__ T rescaling(T old, T top) { return old == top ? T(1) : exp(old - top); }

template <typename T> __device__ __forceinline__ T rescaled_sum(T m, T s) {
    return m == -T(__int_as_float(0x7f800000)) ? m - m : s;
}

template <typename T> struct Carrier { typedef int type; };
template <> struct Carrier<unsigned int> { typedef unsigned int type; };
template <> struct Carrier<long long> { typedef long long type; };
template <> struct Carrier<unsigned long long> { typedef unsigned long long type; };
template <> struct Carrier<float> { typedef float type; };
template <> struct Carrier<double> { typedef double type; };
template <typename T> __device__ __forceinline__ T shuffle(T value, int distance) {
    return T(__shfl_xor_sync(0xffffffffu, (typename Carrier<T>::type)value, distance));
}

template <int BYTES> struct MemoryWord;
template <> struct MemoryWord<1> { typedef unsigned char type; };
template <> struct MemoryWord<2> { typedef unsigned short type; };
template <> struct MemoryWord<4> { typedef unsigned int type; };
template <> struct MemoryWord<8> { typedef uint2 type; };
template <> struct MemoryWord<16> { typedef uint4 type; };
template <typename T, int N> struct Pack {
    static constexpr int bytes = N * sizeof(T), word_bytes = bytes < 16 ? bytes : 16;
    typedef typename MemoryWord<word_bytes>::type Word;
    alignas(word_bytes) T at[N];
};

template <typename T, int N> __device__ __forceinline__ void store_pack(const Pack<T, N>& pack, T* to) {
    typedef typename Pack<T, N>::Word Word;
    #pragma unroll
    for (int w = 0; w < Pack<T, N>::bytes / Pack<T, N>::word_bytes; w++) {
        reinterpret_cast<Word*>(to)[w] = reinterpret_cast<const Word*>(pack.at)[w];
    }
}

template <typename T, int N> __device__ __forceinline__ void forget(Pack<T, N>& pack) {
    if constexpr (Pack<T, N>::bytes % 4 == 0) {
        #pragma unroll
        for (int w = 0; w < Pack<T, N>::bytes / 4; w++) {
            asm volatile("" : "+r"(reinterpret_cast<unsigned int*>(pack.at)[w]));
        }
    }
}

template <typename T, int N, typename Index>
__device__ __forceinline__ void load_elements(Pack<T, N>& pack, const T* from, Index step, int count) {
    #pragma unroll
    for (int e = 0; e < N; e++) {
        if (e < count) pack.at[e] = from[e * step];
    }
}

template <typename T, int N, typename Index>
__device__ __forceinline__ void store_elements(const Pack<T, N>& pack, T* to, Index step, int count) {
    #pragma unroll
    for (int e = 0; e < N; e++) {
        if (e < count) to[e * step] = pack.at[e];
    }
}

template <typename T, int N> __device__ __forceinline__ void copy_ahead(Pack<T, N>& to, const T* from) {
    constexpr int word = Pack<T, N>::word_bytes;
    #pragma unroll
    for (int w = 0; w < Pack<T, N>::bytes / word; w++) {
        const unsigned int place = (unsigned int)__cvta_generic_to_shared(reinterpret_cast<char*>(to.at) + w * word);
        const void* source = reinterpret_cast<const char*>(from) + w * word;
        if constexpr (word == 16) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(place), "l"(source) : "memory");
        } else {
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(place), "l"(source), "n"(word) : "memory");
        }
    }
}

__device__ __forceinline__ void copies_asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }

__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void wait_for_blocks(unsigned int* arrived, unsigned int blocks) {
    __syncthreads();
    if (threadIdx.x + threadIdx.y == 0) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(arrived) : "memory");
        unsigned int count;
        while (true) {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
            if (count >= blocks) break;
            __nanosleep(32);
        }
    }
    __syncthreads();
}

typedef int Index;

struct Sizes { long long points, units, chunk, parts, divisors[1], extents[1], inner[2], along[2], steps[2][1]; };

extern "C" __global__ void __launch_bounds__(256, 2) kernel_softmax(const float* in0, float* out0, float* part1, float* part4, unsigned int* arrived, long long* error, const Sizes sizes) {
    const int lane = threadIdx.y;
    const Index from = (Index)blockIdx.y * (Index)sizes.chunk;
    const Index begin = from + lane;
    const Index next = from + (Index)sizes.chunk;
    const Index end = next < (Index)sizes.units ? next : (Index)sizes.units;
    const bool aligned = ((reinterpret_cast<unsigned long long>(in0) | reinterpret_cast<unsigned long long>(out0)) & 15) == 0;
    const Index stretches = ((Index)sizes.points + 7) / 8;
    extern __shared__ uint4 places[];
    Pack<float, 4>* const ahead0 = reinterpret_cast<Pack<float, 4>*>(reinterpret_cast<char*>(places) + 0) + threadIdx.y * 8 + threadIdx.x;
    const auto ask = [&](Index stretch) {  // for all that this thread will hold of a stretch of columns
        const Index number = stretch * 8 + threadIdx.x;
        const bool live = number < (Index)sizes.points;
        const Index i = live ? number : (Index)sizes.points - 1;  // threads beyond the last row repeat it
        Index o0;
        {
            o0 = i * (Index)sizes.steps[0][0];
        }
        #pragma unroll
        for (int n = 0; n < 16; n++) {
            const Index q = begin + n * 32;
            copy_ahead(ahead0[n * 256], in0 + o0 + q * (Index)sizes.along[0]);
        }
        copies_asked();
    };
    if (aligned) ask(blockIdx.x);
    #pragma unroll 1
    for (Index stretch = blockIdx.x; stretch < stretches; stretch += gridDim.x) {
        const Index number = stretch * 8 + threadIdx.x;
        const bool live = number < (Index)sizes.points;
        const Index i = live ? number : (Index)sizes.points - 1;  // threads beyond the last row repeat it
        Index o0, o1;
        {
            o0 = i * (Index)sizes.steps[0][0];
            o1 = i * (Index)sizes.steps[1][0];
        }
        Pack<float, 4> x0[16];
        if (aligned) {
            copies_done();
            #pragma unroll
            for (int n = 0; n < 16; n++) {
                x0[n] = ahead0[n * 256];
            }
            if (stretch + gridDim.x < stretches) ask(stretch + gridDim.x);
        } else {
            #pragma unroll
            for (int n = 0; n < 16; n++) {
                const Index q = begin + n * 32;
                load_elements(x0[n], in0 + o0 + q * (Index)sizes.along[0], (Index)1, 4);
            }
        }
        float s1[4];
        #pragma unroll
        for (int e = 0; e < 4; e++) { s1[e] = (-__int_as_float(0x7f800000)); }
        float s4[4];
        #pragma unroll
        for (int e = 0; e < 4; e++) { s4[e] = 0.0f; }
        #pragma unroll
        for (int n = 0; n < 16; n++) {
            const Index q = begin + n * 32;
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float v0 = x0[n].at[e];
                s1[e] = maximum<float>(s1[e], v0);
            }
        }
        #pragma unroll
        for (int n = 0; n < 16; n++) { forget(x0[n]); }
        {
        #pragma unroll
        for (int distance = 16; distance >= 8; distance >>= 1) {
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float other = shuffle<float>(s1[e], distance);
                s1[e] = maximum<float>(s1[e], other);
            }
        }
        __shared__ float shared1[256];
        if (lane % 4 == 0) {
            #pragma unroll
            for (int e = 0; e < 4; e++) { shared1[lane / 4 * 32 + threadIdx.x * 4 + e] = s1[e]; }
        }
        __syncthreads();
        for (int c = lane * 8 + threadIdx.x; c < 32; c += 256) {
            float several1[8];
            #pragma unroll
            for (int g = 0; g < 8; g++) { several1[g] = shared1[g * 32 + c]; }
            float t1 = several1[0];
            #pragma unroll
            for (int g = 1; g < 8; g++) { t1 = maximum<float>(t1, several1[g]); }
            shared1[c] = t1;
        }
        __syncthreads();
        #pragma unroll
        for (int e = 0; e < 4; e++) { s1[e] = shared1[threadIdx.x * 4 + e]; }
        }
        float reference1[4];
        #pragma unroll
        for (int e = 0; e < 4; e++) reference1[e] = rescaling_reference(s1[e]);
        #pragma unroll
        for (int n = 0; n < 16; n++) {
            const Index q = begin + n * 32;
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float v0 = x0[n].at[e];
                s4[e] += expf(v0 - reference1[e]);
            }
        }
        #pragma unroll
        for (int n = 0; n < 16; n++) { forget(x0[n]); }
        {
        #pragma unroll
        for (int distance = 16; distance >= 8; distance >>= 1) {
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float other = shuffle<float>(s4[e], distance);
                s4[e] = s4[e] + other;
            }
        }
        __shared__ float shared4[256];
        if (lane % 4 == 0) {
            #pragma unroll
            for (int e = 0; e < 4; e++) { shared4[lane / 4 * 32 + threadIdx.x * 4 + e] = s4[e]; }
        }
        __syncthreads();
        for (int c = lane * 8 + threadIdx.x; c < 32; c += 256) {
            float several4[8];
            #pragma unroll
            for (int g = 0; g < 8; g++) { several4[g] = shared4[g * 32 + c]; }
            float t4 = several4[0];
            #pragma unroll
            for (int g = 1; g < 8; g++) { t4 = t4 + several4[g]; }
            shared4[c] = t4;
        }
        __syncthreads();
        #pragma unroll
        for (int e = 0; e < 4; e++) { s4[e] = shared4[threadIdx.x * 4 + e]; }
        }
        if (live && lane == 0) {
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const long long index = ((long long)blockIdx.y * sizes.points + i) * 4 + e;
                part1[index] = s1[e];
            }
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const long long index = ((long long)blockIdx.y * sizes.points + i) * 4 + e;
                part4[index] = s4[e];
            }
        }
        wait_for_blocks(arrived + stretch * 1 + 0, gridDim.y);
        {
        #pragma unroll
        for (int e = 0; e < 4; e++) { s1[e] = (-__int_as_float(0x7f800000)); }
        #pragma unroll 4
        for (long long part = lane; part < sizes.parts; part += 32) {
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const long long index = (part * sizes.points + i) * 4 + e;
                s1[e] = maximum<float>(s1[e], part1[index]);
            }
        }
        #pragma unroll
        for (int distance = 16; distance >= 8; distance >>= 1) {
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float other = shuffle<float>(s1[e], distance);
                s1[e] = maximum<float>(s1[e], other);
            }
        }
        __shared__ float shared1[256];
        if (lane % 4 == 0) {
            #pragma unroll
            for (int e = 0; e < 4; e++) { shared1[lane / 4 * 32 + threadIdx.x * 4 + e] = s1[e]; }
        }
        __syncthreads();
        for (int c = lane * 8 + threadIdx.x; c < 32; c += 256) {
            float several1[8];
            #pragma unroll
            for (int g = 0; g < 8; g++) { several1[g] = shared1[g * 32 + c]; }
            float t1 = several1[0];
            #pragma unroll
            for (int g = 1; g < 8; g++) { t1 = maximum<float>(t1, several1[g]); }
            shared1[c] = t1;
        }
        __syncthreads();
        #pragma unroll
        for (int e = 0; e < 4; e++) { s1[e] = shared1[threadIdx.x * 4 + e]; }
        }
        {
        #pragma unroll
        for (int e = 0; e < 4; e++) { s4[e] = 0.0f; }
        #pragma unroll 1
        for (long long part = lane; part < sizes.parts; part += 32) {
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const long long index = (part * sizes.points + i) * 4 + e;
                s4[e] += part4[index] * rescaling(part1[index], s1[e]);
            }
        }
        #pragma unroll
        for (int distance = 16; distance >= 8; distance >>= 1) {
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float other = shuffle<float>(s4[e], distance);
                s4[e] = s4[e] + other;
            }
        }
        __shared__ float shared4[256];
        if (lane % 4 == 0) {
            #pragma unroll
            for (int e = 0; e < 4; e++) { shared4[lane / 4 * 32 + threadIdx.x * 4 + e] = s4[e]; }
        }
        __syncthreads();
        for (int c = lane * 8 + threadIdx.x; c < 32; c += 256) {
            float several4[8];
            #pragma unroll
            for (int g = 0; g < 8; g++) { several4[g] = shared4[g * 32 + c]; }
            float t4 = several4[0];
            #pragma unroll
            for (int g = 1; g < 8; g++) { t4 = t4 + several4[g]; }
            shared4[c] = t4;
        }
        __syncthreads();
        #pragma unroll
        for (int e = 0; e < 4; e++) { s4[e] = shared4[threadIdx.x * 4 + e]; }
        }
        float inverse4[4];
        #pragma unroll
        for (int e = 0; e < 4; e++) { inverse4[e] = inverse_for_quotients(rescaled_sum(s1[e], s4[e])); }
        #pragma unroll
        for (int n = 0; n < 16; n++) {
            const Index q = begin + n * 32;
            Pack<float, 4> y1;
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                const float v0 = x0[n].at[e];
                const float v2 = v0 - s1[e];
                const float v3 = expf(v2);
                const float v5 = quotient(v3, rescaled_sum(s1[e], s4[e]), inverse4[e]);
                y1.at[e] = v5;
            }
            if (!live) continue;
            if (aligned) store_pack(y1, out0 + o1 + q * (Index)sizes.along[1]);
            else store_elements(y1, out0 + o1 + q * (Index)sizes.along[1], (Index)1, 4);
        }
        #pragma unroll
        for (int n = 0; n < 16; n++) { forget(x0[n]); }
    }
}
