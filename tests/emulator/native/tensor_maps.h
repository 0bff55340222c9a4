// A tensor map as the emulator keeps it in the 128 bytes of a CUtensorMap.
#pragma once
#include <cstdint>

struct EmulatedTensorMap {
    static constexpr uint32_t MAGIC = 0x70616d74;
    uint64_t address;
    uint64_t strides[4];  // bytes, of axis 1, 2, ...
    uint32_t extents[5];  // less 1, so that 2^32 fits
    uint16_t box[5];      // less 1
    uint8_t rank, element, swizzle, nan_fill;
    uint32_t magic;
    uint32_t unused[12];
};
static_assert(sizeof(EmulatedTensorMap) == 128, "the size of a CUtensorMap");
