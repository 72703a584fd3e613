/* The record of an instruction: its word, its memory accesses, and its checks. hw/spec/instruction.py has the definition. */

#ifndef CORE_RECORD_H
#define CORE_RECORD_H

#include <stdint.h>

enum { NO_TRANSFER, READS_HOST, WRITES_HOST };

/* A field of the word, and the values that it accepts. */
typedef struct core_field {
    uint8_t name, first, width, plain; /* `plain`: width in a core without the feature `needs` */
    uint32_t needs;                    /* mask in register features; 0: every core has the field */
    uint8_t count, most;               /* not 0; at most ring_depth */
    uint16_t codes, more;              /* masks of the accepted values, all if both are 0; `more` in a core with `more_need` */
    uint32_t more_need;
} core_field;

/* Rows of one memory of the core: `base`, and the fields that say how many rows follow. A field F_NONE is absent. */
typedef struct core_span {
    uint8_t space, writes, base, rows[2], loops[4][2], times, tall, step, slide[3], only_if, around, around_modes;
} core_span;

typedef struct core_record {
    uint8_t opcode, unit, transfer, vectors, half, coded, tiled, fields, spans, exclusions;
    uint32_t needs;
    core_field field[16];
    core_span span[3];
    struct {
        uint8_t field[2], code[2];
    } excluded[1];
} core_record;

#endif
