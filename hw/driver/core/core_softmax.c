/* SOFTMAX, in integers. sim/golden/softmax.py has the definition.

   A row may be wider than any array here, so each pass over a row computes its elements again. */

#include "core_numbers.h"
#include "core_state.h"

/* Exponent field of the numbers whose last place is the last place of a distance. */
#define FIXED (127 + 23 - DISTANCE_FRACTION)

/* A row of values: `count` lanes of `tiles` rows of sums. */
typedef struct row_of_values {
    const uint32_t *sums;
    uint32_t n, stride, count;
    int64_t place, centre; /* of the distances: exponent field of the last place, and the aligned maximum */
} row_of_values;

static uint32_t element(const row_of_values *row, uint32_t number)
{
    return one_nan(flushed(row->sums[number / row->n * row->stride * row->n + number % row->n]));
}

/* The position of a number relative to the row's last place: negative if it is far above. */
static int64_t right_of(const row_of_values *row, uint32_t bits)
{
    return row->place + 2 - (int64_t)(bits >> 23 & 0xFF);
}

static int64_t aligned(const row_of_values *row, uint32_t bits)
{
    int64_t right = right_of(row, bits), significand = (int64_t)(bits & 0x7FFFFF) | 0x800000;
    int64_t value = ((significand << 3 >> (right < 0 ? 0 : right > 31 ? 31 : right)) + 1) >> 1;

    return bits & SIGN_BIT ? -value : value;
}

/* exp(number - maximum) as power * 2^-(16 + halvings). */
static int64_t power_of(const row_of_values *row, uint32_t bits, int64_t *halvings)
{
    const int64_t limit = (1 << DISTANCE_BITS) - 1;
    const int shift = DISTANCE_FRACTION + LOG2_E_FRACTION - EXPONENT_FRACTION;
    int64_t raise = row->place - FIXED, t;
    int64_t distance = (row->centre - aligned(row, bits)) * ((int64_t)1 << (raise < 31 ? raise : 31));

    if (distance > limit || right_of(row, bits) < 0)
        distance = limit;
    t = (distance * LOG2_E + (1 << (shift - 1))) >> shift;
    *halvings = t >> EXPONENT_FRACTION;
    return (int64_t)POWERS[t >> 8 & 15] * (int64_t)(FINE_POWERS[t >> 4 & 15] - FINEST_LOSSES[t & 15]) >> 16;
}

/* Finds the maximum of a row and sets its places. Returns the exponent field of the maximum. */
static uint32_t find_places(row_of_values *row)
{
    uint32_t most = 0, largest = 0, i;

    for (i = 0; i < row->count; i++) {
        uint32_t key = ordered(element(row, i));

        if (!i || key > most) {
            most = key;
            largest = element(row, i);
        }
    }
    row->place = (int64_t)(largest >> 23 & 0xFF) - 1;
    row->place = row->place < FIXED ? FIXED : row->place;
    row->centre = aligned(row, largest);
    return largest >> 23 & 0xFF;
}

static int64_t bit_length(int64_t value)
{
    int64_t bits = 0;

    for (; value; value >>= 1)
        bits++;
    return bits;
}

static uint32_t result_of(int64_t power, int64_t halvings, int64_t quotient, int64_t places)
{
    int64_t product = power * quotient, upper = product >> 31, result;

    product = upper ? product : product * 2;
    result = (RESULT_EXPONENT - halvings - places + upper) * 128 + ((product + 0x800000) >> 24) - 128;
    return result < 128 ? 0 : (uint32_t)result << 16;
}

void tpu_core_softmax(tpu_core *core, const uint32_t *field)
{
    uint32_t n = core->n, format = field[F_FORMAT], number, i, bits;
    row_of_values row = {0, n, field[F_ACC_STRIDE], n * (field[F_TILES] - 1) + field[F_LANES], 0, 0};

    for (number = 0; number < field[F_ROWS]; number++) {
        uint32_t first = field[F_BUFFER] + number * (format == FORMAT_BINARY32 ? 2 : 1), top;
        int64_t total = 0, power, halvings, places, quotient;

        row.sums = core->sums + (field[F_ACC] + number) * n;
        top = find_places(&row);
        for (i = 0; i < row.count; i++) {
            power = power_of(&row, element(&row, i), &halvings);
            total += halvings < 32 ? power << 16 >> halvings : 0;
        }
        total >>= 16;
        places = bit_length(total);
        quotient = (((int64_t)1 << (15 + places)) - 1) / total;
        for (i = 0; i < n * field[F_TILES]; i++) {
            bits = 0;
            if (i < row.count) {
                power = power_of(&row, element(&row, i), &halvings);
                bits = top == 0xFF ? NAN_BITS : result_of(power, halvings, quotient, places);
            }
            tpu_core_write_result(core, first + i / n * field[F_BUFFER_STRIDE], i % n, bits, format);
        }
    }
}
