/* The activation unit: results of sums, windows, products and updates. sim/golden/isa_model.py and table_lookup.py have the
   definition. Rows are processed in sequence, as a later row may overwrite a result, or read one. */

#include <string.h>

#include "core_numbers.h"
#include "core_state.h"

#define NOTHING 255u /* index of a window without a positive number */

/* The exponent and sign of `value`, with the exponent raised by `shift`, and `significand` normalised and rounded. */
static uint16_t rounded_entry(int64_t value, int64_t significand, int64_t shift)
{
    int64_t up = (significand >= 0x4000) - (significand < 0x2000) - (significand < 0x1000);
    int64_t fraction = (significand * (1 << (1 - up)) + 0x40) >> 7;
    int64_t pattern = ((value >> 7 & 0xFF) + shift + up) * 128 + fraction - 0x80;

    if (!(value & 0x7F80) || significand < 0x800 || pattern < 0x80)
        pattern = 0;
    return (uint16_t)((value & 0x8000) | (pattern < 0x7F80 ? pattern : 0x7F80));
}

/* The value of the function table for a sum, as bfloat16. */
static uint16_t looked_up(const tpu_core *core, uint32_t sum)
{
    const uint32_t *set = core->settings;
    int64_t sign = sum >> 31, exponent = sum >> 23 & 0xFF, fraction = sum >> 16 & 0x7F, between = sum >> 4 & 0xFFF;
    int64_t half = set[F_SCALE] & 1, inverse = set[F_SCALE] >> 1;
    int64_t distance = exponent - (int64_t)set[F_FIRST], last = TABLE_BINADES - 1 - (int64_t)set[F_SPARE];
    int below = distance < 0, above = distance > last;
    int64_t nearest = below ? (distance & half) : above ? last - (~distance & half) : distance;
    int64_t power = (below ? set[F_LINEAR_LOW] : above ? set[F_LINEAR_HIGH] : 0) >> sign & 1;
    int64_t place = sign << 11 | ((set[F_BASE] + nearest) & (TABLE_BINADES - 1)) << 7 | fraction;
    int64_t value = core->table[2 * place], slope = core->table[2 * place + 1];
    int64_t rest = (slope >> 12 ^ 8) - 8, gain = ((slope & 0xFFF) ^ 0x800) - 0x800;
    int zero = power && exponent == 0, is_end = zero || (power && exponent == 0xFF && set[F_SCALE] > 0);
    int64_t shift = ((distance - nearest) >> half) * (inverse ? -1 : 1) * power, moves;

    if (is_end)
        shift = zero == inverse ? EXPONENT_ALWAYS : EXPONENT_NEVER;
    moves = (power && !is_end) || !(below || above) ? between : 0;
    if ((exponent == 0xFF && fraction) || (!zero && (value & 0x7FFF) > 0x7F80))
        return NAN_BITS >> 16;
    return rounded_entry(value, ((value & 0x7F) | 0x80) * 64 + rest * 4 + (gain * moves >> 9), shift);
}

static uint32_t result_of(const tpu_core *core, uint32_t sum, uint32_t function)
{
    return function == FUNCTION_TABLE ? (uint32_t)looked_up(core, sum) << 16 : function == FUNCTION_RELU ? relu(sum) : sum;
}

/* Writes a result to the buffer: rounded, or as two words of the vectors `row` and `row` + 1. */
void tpu_core_write_result(tpu_core *core, uint32_t row, uint32_t lane, uint32_t bits, uint32_t format)
{
    uint16_t *vector = core->buffer + row * core->n;

    if (format == FORMAT_BINARY32) {
        vector[2 * lane] = (uint16_t)bits;
        vector[2 * lane + 1] = (uint16_t)(bits >> 16);
    } else
        vector[lane] = rounded(bits);
}

static void activate(tpu_core *core, const uint32_t *field)
{
    uint32_t n = core->n, rows = field[F_ROWS], format = field[F_FORMAT], row, lane;
    uint16_t *upper = core->buffer + field[F_BUFFER] * n;

    for (row = 0; row < rows; row++)
        for (lane = 0; lane < n; lane++) {
            uint32_t sum = core->sums[(field[F_ACC] + row) * n + lane];
            uint32_t bits = lane < field[F_LANES] ? result_of(core, sum, field[F_FUNCTION]) : 0;

            if (format == FORMAT_PLANES) {
                upper[row * n + lane] = (uint16_t)(bits >> 16);
                upper[(rows + row) * n + lane] = (uint16_t)bits;
            } else
                tpu_core_write_result(core, field[F_BUFFER] + row * (format == FORMAT_BINARY32 ? 2 : 1), lane, bits, format);
        }
}

/* Returns the largest number of a window in one lane, and its index. */
static uint32_t largest_of(const tpu_core *core, const uint32_t *field, uint32_t acc, uint32_t lane, uint32_t *index)
{
    uint32_t most = 0, w0, w1;

    *index = 0;
    for (w1 = 0; w1 < field[F_WINDOW1]; w1++)
        for (w0 = 0; w0 < field[F_WINDOW0]; w0++) {
            uint32_t row = acc + w1 * field[F_WINDOW1_STRIDE] + w0 * field[F_WINDOW0_STRIDE];
            uint32_t key = ordered(core->sums[row * core->n + lane]);

            if (key > most) {
                most = key;
                *index = w1 * field[F_WINDOW0] + w0;
            }
        }
    return of_ordered(most);
}

static void pool(tpu_core *core, const uint32_t *field)
{
    uint32_t format = field[F_FORMAT], function = field[F_FUNCTION], height = format == FORMAT_BINARY32 ? 2 : 1;
    uint32_t step = field[F_BUFFER_STEP] ? field[F_BUFFER_STEP] : height, r0, r1, lane, index, bits;

    for (r1 = 0; r1 < field[F_ROWS1]; r1++)
        for (r0 = 0; r0 < field[F_ROWS0]; r0++)
            for (lane = 0; lane < core->n; lane++) {
                uint32_t acc = field[F_ACC] + r1 * field[F_ROWS1_STRIDE] + r0 * field[F_ROWS0_STRIDE];
                uint32_t row = field[F_BUFFER] + r1 * field[F_BUFFER_STRIDE] + r0 * step;

                bits = largest_of(core, field, acc, lane, &index);
                if (function == FUNCTION_RELU && !relu(bits))
                    index = NOTHING;
                if (format == FORMAT_INDEX)
                    core->buffer[row * core->n + lane] = (uint16_t)(lane < field[F_LANES] ? index : 0);
                else
                    tpu_core_write_result(core, row, lane, lane < field[F_LANES] ? result_of(core, bits, function) : 0, format);
            }
}

static void multiply(tpu_core *core, const uint32_t *field)
{
    uint32_t n = core->n, row, lane;

    for (row = 0; row < field[F_ROWS]; row++)
        for (lane = 0; lane < n; lane++) {
            uint16_t x = rounded(core->sums[(field[F_ACC] + row) * n + lane]);
            uint16_t w = core->buffer[(field[F_OPERAND] + row) * n + lane];

            uint16_t product = rounded(without_minus_zero(product_of(x, w)));

            core->buffer[(field[F_BUFFER] + row) * n + lane] = lane < field[F_LANES] ? product : 0;
        }
}

static void select_rows(tpu_core *core, const uint32_t *field)
{
    uint32_t n = core->n, step = field[F_BUFFER_STEP] ? field[F_BUFFER_STEP] : 1, r0, r1, lane;

    for (r1 = 0; r1 < field[F_ROWS1]; r1++)
        for (r0 = 0; r0 < field[F_ROWS0]; r0++)
            for (lane = 0; lane < n; lane++) {
                uint32_t row = field[F_BUFFER] + r1 * field[F_BUFFER_STRIDE] + r0 * step;
                uint32_t acc = field[F_ACC] + r1 * field[F_ROWS1_STRIDE] + r0 * field[F_ROWS0_STRIDE];
                uint16_t operand = core->buffer[(field[F_OPERAND] + r1 * field[F_OPERAND_STRIDE] + r0) * n + lane];
                int is_positive = operand >= 0x0080 && operand <= 0x7F80; /* neither 0, subnormal, negative nor a NaN */
                int holds = field[F_CONDITION] == CONDITION_EQUAL ? (operand & 0xFFu) == field[F_NUMBER] : is_positive;

                core->buffer[row * n + lane] = holds ? rounded(core->sums[acc * n + lane]) : 0;
            }
}

static void update(tpu_core *core, const uint32_t *field)
{
    uint32_t n = core->n, row, lane;

    for (row = 0; row < field[F_ROWS]; row++)
        for (lane = 0; lane < n; lane++) {
            const uint32_t *master = core->bias + (field[F_BIAS] + row) * n + lane, *momentum = master + field[F_ROWS] * n;
            uint16_t *result = core->updates + (field[F_UPDATE] + row) * 3 * n + lane;
            uint32_t moved = product_of((uint16_t)(*momentum >> 16), (uint16_t)field[F_MOMENTUM]), sum;

            sum = sum_of(core->sums[(field[F_ACC] + row) * n + lane], moved);
            result[0] = rounded(without_minus_zero(sum));
            sum = without_minus_zero(sum_of(*master, product_of(result[0], (uint16_t)field[F_RATE])));
            result[n] = (uint16_t)(sum >> 16);
            result[2 * n] = (uint16_t)sum;
        }
}

static void load_table(tpu_core *core, const uint32_t *field)
{
    memcpy(core->table + field[F_WORD], core->buffer + field[F_BUFFER] * core->n, field[F_ROWS] * core->n * sizeof *core->table);
    memcpy(core->settings, field, sizeof core->settings);
}

void tpu_core_result(tpu_core *core, uint32_t opcode, const uint32_t *field)
{
    switch (opcode) {
    case OP_ACTIVATE:
        activate(core, field);
        break;
    case OP_POOL:
        pool(core, field);
        break;
    case OP_SOFTMAX:
        tpu_core_softmax(core, field);
        break;
    case OP_NORMALIZE:
        tpu_core_normalize(core, field);
        break;
    case OP_MULTIPLY:
        multiply(core, field);
        break;
    case OP_LOAD_TABLE:
        load_table(core, field);
        break;
    case OP_SELECT:
        select_rows(core, field);
        break;
    default:
        update(core, field);
    }
}
