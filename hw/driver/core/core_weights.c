/* Tiles of weights in OCP MX formats. sim/golden/weight_formats.py has the definition. */

#include "core_numbers.h"
#include "core_state.h"

static uint32_t code_bits(uint32_t format)
{
    return format == WEIGHT_MXFP6 ? 6 : format == WEIGHT_MXFP4 ? 4 : 8;
}

uint64_t tpu_core_coded_vectors(uint32_t n, uint32_t format, uint32_t tiles)
{
    return (uint64_t)tiles * n * code_bits(format) / 16 + (tiles + 1) / 2;
}

/* Returns the code of a row and a column of a tile. */
static uint32_t code_of(const uint8_t *codes, uint32_t n, uint32_t format, uint32_t row, uint32_t column)
{
    if (format == WEIGHT_MXFP6) { /* three vectors for eight columns: upper two bits, then lower four bits */
        const uint8_t *group = codes + column / 8 * 6 * n;
        uint32_t upper = get16(group + 2 * row) >> 2 * (column % 8) & 3;

        return upper << 4 | (get16(group + 2 * n * (1 + column % 8 / 4) + 2 * row) >> 4 * (column % 4) & 15);
    }
    if (format == WEIGHT_MXFP4)
        return get16(codes + 2 * n * (column / 4) + 2 * row) >> 4 * (column % 4) & 15;
    return get16(codes + 2 * n * (column / 2) + 2 * row) >> 8 * (column % 2) & 255;
}

/* Returns the bfloat16 of significand * 2**exponent * 2**(scale - 127). */
static uint16_t scaled(uint32_t negative, uint32_t significand, int exponent, uint32_t scale)
{
    uint16_t sign = negative ? 0x8000 : 0;

    exponent += (int)scale + 7; /* of a significand from 128 to 255, as bfloat16 counts */
    if (!significand)
        return sign;
    while (significand < 128) {
        significand *= 2;
        exponent--;
    }
    if (exponent <= 0)
        return sign;
    return (uint16_t)(sign | (exponent >= 255 ? 0x7F80u : (uint32_t)exponent << 7 | (significand & 127)));
}

static uint16_t decoded(uint32_t code, uint32_t format, uint32_t scale)
{
    uint32_t fractions = format == WEIGHT_MXFP4 ? 1 : 3, sign = code_bits(format) - 1, exponent, fraction;
    int bias = format == WEIGHT_MXFP8 ? 7 : 1;

    if (scale == 255 || (format == WEIGHT_MXFP8 && (code & 127) == 127))
        return NAN_BITS >> 16;
    if (format == WEIGHT_MXINT8)
        return scaled(code >> 7, code & 128 ? 256 - code : code, -6, scale);
    fraction = code & ((1u << fractions) - 1);
    exponent = (code & ((1u << sign) - 1)) >> fractions;
    if (exponent)
        fraction |= 1u << fractions;
    else
        exponent = 1;
    return scaled(code >> sign, fraction, (int)exponent - bias - (int)fractions, scale);
}

uint32_t tpu_core_decode_tile(uint16_t *weights, const uint8_t *scales, const uint8_t *codes, uint32_t n, uint32_t format)
{
    uint32_t row, column;

    for (row = 0; row < n; row++)
        for (column = 0; column < n; column++)
            weights[row * n + column] = decoded(code_of(codes, n, format, row, column), format, scales[column]);
    return n * n * code_bits(format) / 8;
}
