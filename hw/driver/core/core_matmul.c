/* MATMUL: passes of the array. Sums over k are added in the order of k, for several columns and rows at a time.

   A product or sum may be subnormal, or a product may overflow, only if the exponents of operands and sums are extreme. Otherwise
   nothing is flushed, and a compiler that fuses multiplication and addition gives the same bits, as products are exact. */

#include <float.h>
#include <string.h>

#include "core_numbers.h"
#include "core_state.h"

/* The biased exponents of products and sums that are safe: products from 2^-112 on have no bit below 2^-126, nor have sums from
   2^-103 on; products below 2^127 do not overflow. */
enum { LEAST_PRODUCT = 127 - 126 + 7 + 127 + 7, MOST_PRODUCT = 127 + 127 + 125, LEAST_SUM = 127 - 126 + 23, NO_EXPONENT = 255 };

static inline float flushed_float(float value)
{
    return value * (float)((value >= FLT_MIN) | (value <= -FLT_MIN));
}

/* Adds the products of four vectors to four rows of sums, in COLUMNS columns. */
static void add_four(float *sums, const float *x, const float *weights, uint32_t n, uint32_t width)
{
    float sum0[COLUMNS], sum1[COLUMNS], sum2[COLUMNS], sum3[COLUMNS];
    uint32_t k, column;

    memcpy(sum0, sums, sizeof sum0);
    memcpy(sum1, sums + width, sizeof sum1);
    memcpy(sum2, sums + 2 * width, sizeof sum2);
    memcpy(sum3, sums + 3 * width, sizeof sum3);
    for (k = 0; k < n; k++, x++, weights += width) {
        const float x0 = x[0], x1 = x[n], x2 = x[2 * n], x3 = x[3 * n];

        for (column = 0; column < COLUMNS; column++) {
            sum0[column] += x0 * weights[column];
            sum1[column] += x1 * weights[column];
            sum2[column] += x2 * weights[column];
            sum3[column] += x3 * weights[column];
        }
    }
    memcpy(sums, sum0, sizeof sum0);
    memcpy(sums + width, sum1, sizeof sum1);
    memcpy(sums + 2 * width, sum2, sizeof sum2);
    memcpy(sums + 3 * width, sum3, sizeof sum3);
}

/* Adds the products of one vector, flushed, to a row of sums. */
static void add_flushed(float *sums, const float *x, const float *weights, uint32_t n, uint32_t width)
{
    uint32_t k, column;

    for (k = 0; k < n; k++, weights += width)
        for (column = 0; column < width; column++) {
            const float product = flushed_float(x[k] * weights[column]), sum = sums[column] + product;

            sums[column] = flushed_float(sum);
        }
}

/* Converts bfloat16 to flushed floats, and extends the range of the exponents of those that are not 0. */
static void widen(float *restrict to, const uint16_t *restrict from, uint32_t count, int *least, int *most)
{
    int16_t low = 0x7FFF, high = 0;
    uint32_t i;

    for (i = 0; i < count; i++) {
        int16_t exponent = (int16_t)(from[i] & 0x7F80), below = (int16_t)((exponent - 1) & 0x7FFF);

        low = below < low ? below : low;
        high = exponent > high ? exponent : high;
    }
    for (i = 0; i < count; i++)
        to[i] = float_of(widened(from[i]));
    *least = (low + 1) >> 7 < *least ? (low + 1) >> 7 : *least;
    *most = high >> 7 > *most ? high >> 7 : *most;
}

/* Takes the next tile from the FIFO into the array. */
static void take_tile(tpu_core *core)
{
    const uint16_t *weights = core->fifo + core->fifo_first++ * core->n * core->n;
    uint32_t row;

    core->fifo_tiles--;
    core->tile_least = NO_EXPONENT;
    core->tile_most = 0;
    for (row = 0; row < core->n; row++)
        widen(core->tile + row * core->width, weights + row * core->n, core->n, &core->tile_least, &core->tile_most);
}

/* Copies sums to floats, and returns the least exponent of those that are not 0. */
static int copy_sums(float *restrict to, const uint32_t *restrict from, uint32_t n)
{
    int32_t low = 0x7FFFFFFF;
    uint32_t i;

    for (i = 0; i < n; i++) {
        int32_t below = ((int32_t)(from[i] & INFINITY_BITS) - 1) & 0x7FFFFFFF;

        low = below < low ? below : low;
        to[i] = float_of(flushed(from[i]));
    }
    return (int)(((uint32_t)low + 1) >> 23);
}

/* One pass: vectors from row `operand` of the buffer on, sums from row `acc` on; `bias` is its first bias row. */
static void run_pass(tpu_core *core, const uint32_t *field, uint32_t operand, uint32_t acc, uint32_t bias)
{
    float sums[ROWS * MOST_N];
    uint32_t n = core->n, width = core->width, rows = field[F_ROWS0] * field[F_ROWS1], first, row, count, lane;

    memset(sums, 0, ROWS * width * sizeof *sums); /* columns beyond n, in a narrow core */
    for (first = 0; first < rows; first += count) {
        int least = NO_EXPONENT, most = 0, least_sum = NO_EXPONENT;

        count = rows - first < ROWS ? rows - first : ROWS;
        for (row = 0; row < count; row++) {
            uint32_t number = first + row, r1 = number / field[F_ROWS0], r0 = number % field[F_ROWS0];
            uint32_t vector = operand + r1 * field[F_ROWS1_STRIDE] + r0 * field[F_ROWS0_STRIDE];
            const uint32_t *start = core->sums + (acc + number) * n;
            int exponent;

            if (field[F_START])
                start = core->bias + (bias + (field[F_BIAS_ROWS] ? number : 0)) * n;
            widen(core->operands + row * n, core->buffer + vector * n, n, &least, &most);
            exponent = copy_sums(sums + row * width, start, n);
            least_sum = exponent < least_sum ? exponent : least_sum;
        }
        if (least + core->tile_least < LEAST_PRODUCT || most + core->tile_most > MOST_PRODUCT || least_sum < LEAST_SUM)
            for (row = 0; row < count; row++)
                add_flushed(sums + row * width, core->operands + row * n, core->tile, n, width);
        else
            for (lane = 0; lane < width; lane += COLUMNS)
                add_four(sums + lane, core->operands, core->tile + lane, n, width);
        for (row = 0; row < count; row++)
            for (lane = 0; lane < n; lane++)
                core->sums[(acc + first + row) * n + lane] = without_minus_zero(one_nan(bits_of(sums[row * width + lane])));
    }
}

void tpu_core_matmul(tpu_core *core, const uint32_t *field)
{
    uint32_t t0, t1;

    for (t1 = 0; t1 < field[F_TILES1]; t1++)
        for (t0 = 0; t0 < field[F_TILES0]; t0++) {
            if (!field[F_KEEP])
                take_tile(core);
            run_pass(core, field, field[F_BUFFER] + t1 * field[F_TILES1_STRIDE] + t0 * field[F_TILES0_STRIDE],
                     field[F_ACC] + t1 * field[F_TILES1_ACC_STRIDE] + t0 * field[F_TILES0_ACC_STRIDE], field[F_BIAS] + t0);
        }
    REGISTER(core, BUSY) += field[F_ROWS0] * field[F_ROWS1] * field[F_TILES0] * field[F_TILES1];
}
