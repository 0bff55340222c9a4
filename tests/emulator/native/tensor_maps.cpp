// cuTensorMapEncodeTiled: the description is kept as it was given, for the emulated TMA to read.
#include "tensor_maps.h"

#include <cstring>

#include "driver.h"

API Result cuTensorMapEncodeTiled(EmulatedTensorMap* map, int dtype, unsigned int rank, void* address, const uint64_t* extents,
                                  const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides, int interleave,
                                  int swizzle, int, int fill) {
    static const unsigned int SIZES[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    if (!map || (uint64_t)map % 64 || rank < 1 || rank > 5 || dtype < 0 || dtype > 12 || interleave || swizzle > 3) return INVALID_VALUE;
    if ((uint64_t)address % 16) return INVALID_VALUE;
    memset(map, 0, sizeof *map);
    map->address = (uint64_t)address;
    map->rank = rank;
    map->element = SIZES[dtype];
    map->swizzle = swizzle;
    for (unsigned int i = 0; i < rank; i++) {
        if (!extents[i] || extents[i] > 1ull << 32 || !box[i] || box[i] > 256 || element_strides[i] != 1) return INVALID_VALUE;
        if (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40)) return INVALID_VALUE;
        map->extents[i] = (uint32_t)(extents[i] - 1);
        map->box[i] = (uint16_t)(box[i] - 1);
        if (i) map->strides[i - 1] = strides[i - 1];
    }
    const unsigned int inner = box[0] * map->element;
    if (inner % 16 || (swizzle && inner > 16u << swizzle)) return INVALID_VALUE;
    if (fill && dtype < 6) return INVALID_VALUE;
    map->nan_fill = fill != 0;
    map->magic = EmulatedTensorMap::MAGIC;
    return SUCCESS;
}
