// Matrix instructions of warps and warpgroups, by the fragment layouts and descriptors of the PTX manual.
#include <cmath>
#include <cstring>

#include "machine.h"

namespace {

float widen_half(uint16_t bits) {
    _Float16 value;
    memcpy(&value, &bits, 2);
    return (float)value;
}
float widen_bfloat(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
float sixteen(int format, uint16_t bits) { return format == 0 ? widen_half(bits) : widen_bfloat(bits); }
float tf32(uint32_t bits) { return as_float(bits & ~0x1fffu); }  // the hardware ignores the last 13 bits

struct Product {
    int k, format, registers_a, registers_b;
    const uint32_t *a, *b;
    void* d;
};

// d (16, 8) += a (16, k) b (k, 8), or (8, 8, 4) in double precision.
void multiply(void** lanes, unsigned int, const void*) {
    for (int i = 0; i < 32; i++) {
        if (!lanes[i]) machine::fault(719, "an mma of a warp that lacks lane %d", i);
    }
    const Product& first = *(Product*)lanes[0];
    const int k = first.k, format = first.format;
    static double a[16][32], b[32][8];
    for (int lane = 0; lane < 32; lane++) {
        const Product& p = *(Product*)lanes[lane];
        const int group = lane / 4, t = lane % 4;
        if (format == 5) {
            memcpy(&a[group][t], p.a, 8);
            memcpy(&b[t][group], p.b, 8);
        } else if (format <= 1) {
            for (int r = 0; r < p.registers_a; r++) {
                for (int h = 0; h < 2; h++) a[group + 8 * (r % 2)][2 * t + h + 8 * (r / 2)] = sixteen(format, p.a[r] >> 16 * h);
            }
            for (int r = 0; r < p.registers_b; r++) {
                for (int h = 0; h < 2; h++) b[2 * t + h + 8 * r][group] = sixteen(format, p.b[r] >> 16 * h);
            }
        } else if (format == 2) {
            for (int r = 0; r < p.registers_a; r++) a[group + 8 * (r % 2)][t + 4 * (r / 2)] = tf32(p.a[r]);
            for (int r = 0; r < p.registers_b; r++) b[t + 4 * r][group] = tf32(p.b[r]);
        } else {
            auto byte = [&](uint32_t word, int i) { return format == 3 ? (double)(int8_t)(word >> 8 * i) : (double)(uint8_t)(word >> 8 * i); };
            for (int r = 0; r < p.registers_a; r++) {
                for (int h = 0; h < 4; h++) a[group + 8 * (r % 2)][4 * t + h + 16 * (r / 2)] = byte(p.a[r], h);
            }
            for (int r = 0; r < p.registers_b; r++) {
                for (int h = 0; h < 4; h++) b[4 * t + h + 16 * r][group] = byte(p.b[r], h);
            }
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        const Product& p = *(Product*)lanes[lane];
        const int count = format == 5 ? 2 : 4;
        for (int i = 0; i < count; i++) {
            const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            double sum = 0;
            for (int j = 0; j < k; j++) sum += a[row][j] * b[j][column];
            if (format == 5) ((double*)p.d)[i] += sum;
            else if (format >= 3) ((int32_t*)p.d)[i] = (int32_t)(((int32_t*)p.d)[i] + (int64_t)sum);
            else ((float*)p.d)[i] = (float)(((float*)p.d)[i] + sum);
        }
    }
}

struct Rows {
    const char* row;
    int count;
    bool transposed;
    uint32_t* m;
};

void load_rows(void** lanes, unsigned int, const void*) {
    const Rows& first = *(Rows*)lanes[0];
    for (int lane = 0; lane < 32; lane++) {
        const Rows& mine = *(Rows*)lanes[lane];
        for (int i = 0; i < first.count; i++) {
            for (int h = 0; h < 2; h++) {
                int row = lane / 4, column = 2 * (lane % 4) + h;
                if (first.transposed) std::swap(row, column);
                uint16_t value;
                memcpy(&value, ((Rows*)lanes[8 * i + row])->row + 2 * column, 2);
                mine.m[i] = h ? mine.m[i] | (uint32_t)value << 16 : value;
            }
        }
    }
}

void store_rows(void** lanes, unsigned int, const void*) {
    const Rows& first = *(Rows*)lanes[0];
    for (int lane = 0; lane < 32; lane++) {
        const Rows& mine = *(Rows*)lanes[lane];
        for (int i = 0; i < first.count; i++) {
            for (int h = 0; h < 2; h++) {
                int row = lane / 4, column = 2 * (lane % 4) + h;
                if (first.transposed) std::swap(row, column);
                const uint16_t value = (uint16_t)(mine.m[i] >> 16 * h);
                memcpy((char*)((Rows*)lanes[8 * i + row])->row + 2 * column, &value, 2);
            }
        }
    }
}

void transpose(void** lanes, unsigned int, const void*) {
    uint32_t given[32];
    for (int i = 0; i < 32; i++) given[i] = *(uint32_t*)lanes[i];
    for (int lane = 0; lane < 32; lane++) {
        uint32_t result = 0;
        for (int h = 0; h < 2; h++) {
            const int row = 2 * (lane % 4) + h, column = lane / 4;
            result |= (given[4 * row + column / 2] >> 16 * (column % 2) & 0xffff) << 16 * h;
        }
        *(uint32_t*)lanes[lane] = result;
    }
}

// ---------------------------------------------------------------------------------------------------------- warpgroups

struct Group {
    int n, format;
    float** d;
    const uint32_t* a;
    uint64_t a_matrix, b_matrix;
    bool add;
    int sign_a, sign_b, across_a, across_b;
    char* shared;
};

// Element (row, k) of a matrix in shared memory. `across`: rows lie side by side, not k.
float element(const Group& g, uint64_t matrix, bool across, int row, int k) {
    const int size = g.format == 2 ? 4 : 2, unit = 16 / size;  // bytes; elements of 16 bytes
    const uint32_t start = (matrix & 0x3fff) << 4, leading = (matrix >> 16 & 0x3fff) << 4, stride = (matrix >> 32 & 0x3fff) << 4;
    const int mode = (int)(matrix >> 62);
    const uint32_t line = mode == 1 ? 128 : mode == 2 ? 64 : mode == 3 ? 32 : 16;  // bytes that lie side by side
    if (matrix >> 49 & 7) machine::fault(801, "a matrix descriptor with a base offset is not emulated");
    uint32_t at = start;
    if (!across) {
        const uint32_t byte = (uint32_t)k * size;
        at += row / 8 * stride + row % 8 * line;
        at += mode ? byte : byte / 16 * leading + byte % 16;
    } else if (mode) {
        const int width = line / size;
        at += row / width * leading + row % width * size + k / 8 * stride + k % 8 * line;
    } else {
        at += row / unit * stride + row % unit * size + k / 8 * leading + k % 8 * 16;
    }
    if (mode == 1) at ^= (at >> 7 & 7) << 4;
    if (mode == 2) at ^= (at >> 7 & 3) << 4;
    if (mode == 3) at ^= (at >> 7 & 1) << 4;
    if (at + size > machine::SHARED_BYTES) machine::fault(700, "a matrix descriptor reaches %#x, outside shared memory", at);
    if (size == 4) {
        uint32_t bits;
        memcpy(&bits, g.shared + at, 4);
        return tf32(bits);
    }
    uint16_t bits;
    memcpy(&bits, g.shared + at, 2);
    return sixteen(g.format, bits);
}

void multiply_group(void** lanes, unsigned int, const void*) {
    const Group& first = *(Group*)lanes[0];
    const int k = first.format == 2 ? 8 : 16;
    static double a[64][16], b[16][256];
    for (int lane = 1; lane < 128; lane++) {
        const Group& g = *(Group*)lanes[lane];
        if (g.b_matrix != first.b_matrix || (!g.a && g.a_matrix != first.a_matrix) || g.add != first.add)
            machine::fault(719, "threads of a warpgroup give different descriptors");
    }
    if (first.format == 2 && (first.across_a || first.across_b)) machine::fault(715, "tf32 has no transposed operands");
    for (int lane = 0; lane < 128 && first.a; lane++) {
        const Group& g = *(Group*)lanes[lane];
        const int row = lane / 32 * 16 + lane % 32 / 4, t = lane % 4;
        for (int r = 0; r < 4; r++) {
            if (first.format == 2) a[row + 8 * (r % 2)][t + 4 * (r / 2)] = tf32(g.a[r]);
            else
                for (int h = 0; h < 2; h++) a[row + 8 * (r % 2)][2 * t + h + 8 * (r / 2)] = sixteen(g.format, g.a[r] >> 16 * h);
        }
    }
    for (int i = 0; i < 64 && !first.a; i++) {
        for (int j = 0; j < k; j++) a[i][j] = element(first, first.a_matrix, first.across_a, i, j);
    }
    for (int j = 0; j < k; j++) {
        for (int i = 0; i < first.n; i++) b[j][i] = element(first, first.b_matrix, first.across_b, i, j);
    }
    const double sign = (double)first.sign_a * first.sign_b;
    for (int lane = 0; lane < 128; lane++) {
        const Group& g = *(Group*)lanes[lane];
        for (int i = 0; i < first.n / 2; i++) {
            const int row = lane / 32 * 16 + lane % 32 / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
            double sum = 0;
            for (int j = 0; j < k; j++) sum += a[row][j] * b[j][column];
            *g.d[i] = (float)((first.add ? *g.d[i] : 0.0) + sign * sum);
        }
    }
}

}  // namespace

extern "C" {

void ptx_product(int k, int format, int registers_a, int registers_b, const void* a, const void* b, void* d) {
    Product mine{k, format, registers_a, registers_b, (const uint32_t*)a, (const uint32_t*)b, d};
    emulated_warp(0xffffffffu, multiply, &mine, nullptr, "mma.sync");
}

void ptx_load_matrices(unsigned int row, int count, bool transposed, unsigned int* m) {
    // Lanes beyond 8 * count give addresses that nobody looks at.
    const bool asked = (int)(machine::thread_in_block() % 32) < 8 * count;
    Rows mine{asked ? emulated_shared_pointer(row, 16) : nullptr, count, transposed, m};
    emulated_warp(0xffffffffu, load_rows, &mine, nullptr, "ldmatrix");
}

void ptx_store_matrices(unsigned int row, int count, bool transposed, const unsigned int* m) {
    const bool asked = (int)(machine::thread_in_block() % 32) < 8 * count;
    Rows mine{asked ? emulated_shared_pointer(row, 16) : nullptr, count, transposed, (uint32_t*)m};
    emulated_warp(0xffffffffu, store_rows, &mine, nullptr, "stmatrix");
}

unsigned int ptx_transposed(unsigned int value) {
    emulated_warp(0xffffffffu, transpose, &value, nullptr, "movmatrix");
    return value;
}

void ptx_wgmma(int n, int format, float** d, const unsigned int* a, unsigned long long a_matrix, unsigned long long b_matrix,
               bool add, int sign_a, int sign_b, int across_a, int across_b) {
    if (n % 8 || n < 8 || n > 256) machine::fault(715, "wgmma has no n = %d", n);
    Group mine{n, format, d, a, a_matrix, b_matrix, add, sign_a, sign_b, across_a, across_b, emulated_shared};
    emulated_warpgroup(multiply_group, &mine, nullptr, "wgmma");
}

}
