/* NORMALIZE, in integers. sim/golden/normalization.py has the definition.

   A row may be wider than any array here, so each pass over a row computes its elements again. */

#include "core_numbers.h"
#include "core_state.h"

/* A row of values: `count` lanes of `tiles` rows of sums. */
typedef struct row_of_values {
    const uint32_t *sums;
    uint32_t n, stride, count;
    int64_t top, mean; /* largest exponent field; mean of the aligned values, 0 unless it is subtracted */
} row_of_values;

static uint32_t element(const row_of_values *row, uint32_t number)
{
    return flushed(row->sums[number / row->n * row->stride * row->n + number % row->n]);
}

static int64_t exponent_of(uint32_t bits)
{
    return bits >> 23 & 0xFF;
}

static int64_t difference(const row_of_values *row, uint32_t number)
{
    uint32_t bits = element(row, number);
    int64_t right = row->top - exponent_of(bits), significand = exponent_of(bits) ? (bits & 0x7FFFFF) | 0x800000 : 0;
    int64_t value = ((significand << 2 >> (right > 31 ? 31 : right)) + 1) >> 1;

    return (bits & SIGN_BIT ? -value : value) - row->mean;
}

static int64_t bit_length(uint64_t value)
{
    int64_t bits = 0;

    for (; value; value >>= 1)
        bits++;
    return bits;
}

static void find_mean(row_of_values *row, uint32_t is_centred)
{
    int64_t total = 0, count = row->count;
    uint32_t i;

    row->top = row->mean = 0;
    for (i = 0; i < row->count; i++)
        if (exponent_of(element(row, i)) > row->top)
            row->top = exponent_of(element(row, i));
    for (i = 0; is_centred && i < row->count; i++)
        total += difference(row, i);
    row->mean = total / count - (total % count < 0); /* rounded down */
}

static uint64_t squares_of(const row_of_values *row)
{
    uint64_t total = 0;
    uint32_t i;

    for (i = 0; i < row->count; i++) {
        int64_t value = difference(row, i), k = (value < 0 ? -value - 1 : value) >> SQUARE_SHIFT;

        total += (uint64_t)(k * (k + 1));
    }
    return total;
}

/* 1 / sqrt(squares * 4^last_place + epsilon) as root * 2^-(18 + halved), or 0 for a root of 0. */
static int64_t inverse_root(uint64_t squares, int64_t last_place, uint32_t epsilon, int64_t *halved)
{
    int64_t places = bit_length(squares), exponent = places - 1 + 2 * last_place, other = (int64_t)(epsilon >> 16) - 127;
    int64_t first = (int64_t)(places > 18 ? squares >> (places - 18) : squares << (18 - places)), carry, segment;
    int64_t second = epsilon >> 16 ? (int64_t)((epsilon & 0xFFFF) | 0x10000) << 1 : 0, distance;
    const int rest = 17 - SEGMENT_BITS;

    if (second && (!squares || other > exponent)) {
        int64_t swapped = first, before = exponent;

        first = second;
        second = swapped;
        exponent = other;
        other = before;
    }
    distance = first && second ? exponent - other : 0;
    first += second >> (distance > 31 ? 31 : distance);
    carry = first >> 18;
    first >>= carry;
    exponent += carry;
    *halved = (exponent - (exponent & 1)) / 2;
    segment = (exponent & 1) << SEGMENT_BITS | (first >> rest & ((1 << SEGMENT_BITS) - 1));
    return first ? (int64_t)ROOTS[segment] - ((int64_t)SLOPES[segment] * (first & ((1 << rest) - 1)) >> rest) : 0;
}

/* value * scale * 2^(exponent - 311), rounded to a bfloat16 in the upper half of the result. */
static uint32_t result_of(int64_t value, int64_t scale, int64_t exponent)
{
    int64_t magnitude = value < 0 ? -value : value, places = bit_length((uint64_t)magnitude), product, upper, result;

    product = (magnitude << (26 - places) >> 10) * scale;
    upper = product >> 31;
    product = upper ? product : product * 2;
    result = (exponent - 26 + places + upper) * 128 + ((product + 0x800000) >> 24) - 128;
    result = result < 128 || !value ? 0 : result > 0x7F80 ? 0x7F80 : result;
    return (uint32_t)result << 16 | (value < 0 ? SIGN_BIT : 0);
}

void tpu_core_normalize(tpu_core *core, const uint32_t *field)
{
    uint32_t n = core->n, format = field[F_FORMAT], number, i, bits;
    row_of_values row = {0, n, field[F_ACC_STRIDE], n * (field[F_TILES] - 1) + field[F_LANES], 0, 0};

    for (number = 0; number < field[F_ROWS]; number++) {
        uint32_t first = field[F_BUFFER] + number * (format == FORMAT_BINARY32 ? 2 : 1);
        int64_t root, halved, scale, carry;

        row.sums = core->sums + (field[F_ACC] + number) * n;
        find_mean(&row, field[F_CENTRED]);
        root = inverse_root(squares_of(&row), row.top - 151 + SQUARE_SHIFT, field[F_EPSILON], &halved);
        scale = root * ((field[F_FACTOR] & 0xFFFF) | 0x10000);
        carry = scale >> 34;
        for (i = 0; i < n * field[F_TILES]; i++) {
            bits = 0;
            if (i < row.count)
                bits = row.top == 0xFF || !root ? NAN_BITS
                                                : result_of(field[F_ROOT] ? 1 << 25 : difference(&row, i),
                                                            scale >> (18 + carry),
                                                            (field[F_ROOT] ? 126 : row.top) + carry +
                                                                (field[F_FACTOR] >> 16) - halved - 127);
            tpu_core_write_result(core, first + i / n * field[F_BUFFER_STRIDE], i % n, bits, format);
        }
    }
}
