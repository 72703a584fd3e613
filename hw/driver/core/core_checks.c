/* The checks of an instruction, before it has any effect. sim/golden/isa_check.py has the definition. */

#include <string.h>

#include "core_state.h"

static int has(const tpu_core *core, uint32_t feature)
{
    return !feature || (core->config.features & feature);
}

/* Removes the bits and the codes that the core lacks from the records of its instructions. */
void tpu_core_narrow_records(tpu_core *core)
{
    uint32_t number, i, bit;

    for (number = 0; number < OPCODES; number++) {
        core_record *record = &core->record[number];
        uint8_t *reserved = core->reserved[number];

        *record = RECORDS[number];
        memset(reserved, 0xFF, sizeof core->reserved[number]);
        reserved[0] = 0; /* the opcode */
        for (i = 0; i < record->fields; i++) {
            core_field *field = &record->field[i];

            field->width = has(core, field->needs) ? field->width : field->plain;
            if (has(core, field->more_need))
                field->codes |= field->more;
            for (bit = field->first; bit < (uint32_t)field->first + field->width; bit++)
                reserved[bit / 8] &= (uint8_t)~(1u << bit % 8);
        }
    }
}

/* Returns the record of a word's opcode and the word's reserved bits, or 0. */
static const core_record *record_of(const tpu_core *core, const uint8_t *word)
{
    uint32_t number, byte;

    for (number = 0; number < OPCODES; number++)
        if (core->record[number].opcode == word[0]) {
            for (byte = 0; byte < 32; byte++)
                if (word[byte] & core->reserved[number][byte])
                    return 0;
            return has(core, core->record[number].needs) ? &core->record[number] : 0;
        }
    return 0;
}

static uint32_t extract(const uint8_t *word, uint32_t first, uint32_t width)
{
    uint64_t bits = 0;
    uint32_t byte;

    for (byte = 0; byte < 5 && first / 8 + byte < 32; byte++)
        bits |= (uint64_t)word[first / 8 + byte] << 8 * byte;
    return (uint32_t)(bits >> first % 8 & (((uint64_t)1 << width) - 1));
}

static int has_legal_codes(const tpu_core *core, const core_record *record, const uint32_t *field)
{
    uint32_t i;

    for (i = 0; i < record->fields; i++) {
        uint32_t value = field[record->field[i].name];

        if (record->field[i].codes && !(record->field[i].codes >> value & 1))
            return 0;
        if (record->field[i].name == F_LANES && (value < 1 || value > core->n))
            return 0;
    }
    for (i = 0; i < record->exclusions; i++)
        if (field[record->excluded[i].field[0]] == record->excluded[i].code[0] &&
            field[record->excluded[i].field[1]] == record->excluded[i].code[1])
            return 0;
    return 1;
}

static int has_legal_counts(const tpu_core *core, const core_record *record, const uint32_t *field)
{
    uint32_t i;

    for (i = 0; i < record->fields; i++) {
        const core_field *one = &record->field[i];

        if ((one->count && !field[one->name]) || (one->most && field[one->name] > core->config.ring_depth))
            return 0;
    }
    return !(field[record->tiled] && field[F_ROWS] % core->n);
}

uint32_t tpu_core_ring_size(const tpu_core *core)
{
    return (REGISTER(core, RING) & TPU_RING_SIZE_MASK) >> TPU_RING_SIZE_SHIFT;
}

static int may_ring(const tpu_core *core)
{
    uint32_t ring = REGISTER(core, RING), size = tpu_core_ring_size(core);

    return (ring & TPU_RING_RANK_MASK) < size && size <= MOST_CORES && !(ring & TPU_RING_FLUSH_MASK) &&
           !(core->is_refused && size > 1);
}

static uint64_t region_base(const tpu_core *core, uint32_t region)
{
    const uint32_t *registers = &REGISTER(core, MODEL_BASE_LOW) + region * (TPU_REGION_STEP / 4);

    return (uint64_t)registers[1] << 32 | registers[0];
}

/* Returns the size of a region; 0 if the bus cannot address all of it, or if it does not begin on a beat. */
uint64_t tpu_core_region_bytes(const tpu_core *core, uint32_t region)
{
    uint64_t base = region_base(core, region), bytes = (&REGISTER(core, MODEL_SIZE))[region * (TPU_REGION_STEP / 4)];
    uint64_t last = core->config.address_width < 64 ? ((uint64_t)1 << core->config.address_width) - 1 : UINT64_MAX;

    return base % core->bus_bytes || base > last || (bytes && bytes - 1 > last - base) ? 0 : bytes;
}

uint64_t tpu_core_host_bytes(const tpu_core *core, const core_record *record, const uint32_t *field)
{
    uint64_t vectors = record->vectors ? record->vectors : core->n;
    uint32_t format = field[record->coded];

    if (format != WEIGHT_BFLOAT16)
        return 2 * core->n * tpu_core_coded_vectors(core->n, format, field[F_ROWS]);
    return field[F_ROWS] * 2 * core->n * (field[record->half] ? vectors / 2 : vectors);
}

static int host_is_inside(const tpu_core *core, const core_record *record, const uint32_t *field)
{
    uint32_t region = field[F_REGION];

    if (record->transfer == WRITES_HOST && !(WRITABLE_REGIONS >> region & 1))
        return 0;
    return record->transfer == NO_TRANSFER ||
           (field[F_OFFSET] % core->bus_bytes == 0 &&
            field[F_OFFSET] + tpu_core_host_bytes(core, record, field) <= tpu_core_region_bytes(core, region));
}

uint64_t tpu_core_span_length(const core_span *span, const uint32_t *field, uint32_t cores)
{
    uint64_t height = span->times, rows = 1, length;
    uint32_t i;

    if (span->tall)
        height = field[F_FORMAT] == FORMAT_BINARY32 || field[F_FORMAT] == FORMAT_PLANES ? 2 : 1;
    for (i = 0; i < 2; i++)
        if (span->rows[i])
            rows *= field[span->rows[i]];
    length = height + (rows - 1) * (field[span->step] ? field[span->step] : height);
    if (field[span->slide[0]])
        length += (uint64_t)field[span->slide[1]] * field[span->slide[2]] - 1;
    if (span->around && span->around_modes >> field[F_MODE] & 1)
        length += (uint64_t)(cores - 1) * field[span->around];
    for (i = 0; i < 4; i++)
        if (span->loops[i][0])
            length += (uint64_t)(field[span->loops[i][0]] - 1) * field[span->loops[i][1]];
    return length;
}

static int spans_are_inside(const tpu_core *core, const core_record *record, const uint32_t *field)
{
    const uint32_t depth[SPACES] = {core->config.unified_buffer_depth, core->config.accumulator_depth, core->config.bias_depth,
                                    TABLE_WORDS / core->n, core->config.update_depth};
    uint32_t i;

    for (i = 0; i < record->spans; i++) {
        const core_span *span = &record->span[i];
        uint32_t unit = span->space == SPACE_TABLE ? core->n : 1, base = field[span->base];

        if (span->only_if && !field[span->only_if])
            continue;
        if (base % unit || base / unit + tpu_core_span_length(span, field, tpu_core_ring_size(core)) > depth[span->space])
            return 0;
    }
    return 1;
}

uint32_t tpu_core_decode(const tpu_core *core, const uint8_t *word, const core_record **record, uint32_t *field)
{
    uint32_t i;

    *record = record_of(core, word);
    if (!*record)
        return TPU_FAULT_ILLEGAL;
    memset(field, 0, FIELDS * sizeof *field);
    for (i = 0; i < (*record)->fields; i++)
        field[(*record)->field[i].name] = extract(word, (*record)->field[i].first, (*record)->field[i].width);
    if (!has_legal_codes(core, *record, field))
        return TPU_FAULT_ILLEGAL;
    if (!has_legal_counts(core, *record, field))
        return TPU_FAULT_LENGTH;
    if ((*record)->unit == UNIT_RING && !may_ring(core))
        return TPU_FAULT_RING;
    if (!host_is_inside(core, *record, field) || !spans_are_inside(core, *record, field))
        return TPU_FAULT_ADDRESS;
    return TPU_FAULT_NONE;
}
