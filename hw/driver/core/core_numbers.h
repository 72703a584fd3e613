/* The arithmetic of the cells: binary32 with one NaN, subnormal numbers flushed to zeros of the same sign.

   sim/golden/arithmetic.py has the definition. Bits are exchanged with the host's float through memory, so that no wider register
   of the host's processor keeps more of a number. */

#ifndef CORE_NUMBERS_H
#define CORE_NUMBERS_H

#include <stdint.h>
#include <string.h>

#define NAN_BITS 0x7FC00000u
#define INFINITY_BITS 0x7F800000u
#define SIGN_BIT 0x80000000u

static inline uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t flushed(uint32_t bits)
{
    return bits & INFINITY_BITS ? bits : bits & SIGN_BIT;
}

static inline uint32_t one_nan(uint32_t bits)
{
    return (bits & ~SIGN_BIT) > INFINITY_BITS ? NAN_BITS : bits;
}

/* The binary32 number of a bfloat16, flushed. */
static inline uint32_t widened(uint16_t bits)
{
    return flushed((uint32_t)bits << 16);
}

static inline uint32_t product_of(uint16_t x, uint16_t w)
{
    return one_nan(flushed(bits_of(float_of(widened(x)) * float_of(widened(w)))));
}

static inline uint32_t sum_of(uint32_t a, uint32_t b)
{
    return one_nan(flushed(bits_of(float_of(flushed(a)) + float_of(flushed(b)))));
}

static inline uint32_t without_minus_zero(uint32_t bits)
{
    return bits == SIGN_BIT ? 0 : bits;
}

/* To bfloat16, to nearest, ties to even. */
static inline uint16_t rounded(uint32_t bits)
{
    bits = one_nan(flushed(bits));
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

static inline uint32_t relu(uint32_t bits)
{
    return (bits & ~SIGN_BIT) > INFINITY_BITS ? NAN_BITS : bits & SIGN_BIT ? 0 : bits;
}

/* A key that compares like the number: -0 is below +0, NaN above all. */
static inline uint32_t ordered(uint32_t bits)
{
    return bits & SIGN_BIT ? ~bits : bits | SIGN_BIT;
}

static inline uint32_t of_ordered(uint32_t key)
{
    return key & SIGN_BIT ? key ^ SIGN_BIT : ~key;
}

/* Host memory is little endian. */
static inline uint16_t get16(const uint8_t *bytes)
{
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static inline void put16(uint8_t *bytes, uint16_t value)
{
    bytes[0] = (uint8_t)value;
    bytes[1] = (uint8_t)(value >> 8);
}

#endif
