/* Registers of the core: offsets in bytes, shifted masks.
   Generated from hw/spec/registers.py by `python -m amaranth_tpu.scripts.datasheet`. Do not edit. */

#ifndef TPU_REGS_H
#define TPU_REGS_H

/* Values of the registers id and version of a matching core. */
#define TPU_IDENTIFIER        0x41545055u
#define TPU_INTERFACE_VERSION 0x00010001u

/* Size of the register space in bytes. */
#define TPU_REGISTER_BYTES 0x200u

/* Values of fault_cause. */
#define TPU_FAULT_NONE      0u
#define TPU_FAULT_ILLEGAL   1u
#define TPU_FAULT_ADDRESS   2u
#define TPU_FAULT_LENGTH    3u
#define TPU_FAULT_BUS_READ  4u
#define TPU_FAULT_BUS_WRITE 5u
#define TPU_FAULT_TIMEOUT   6u
#define TPU_FAULT_RING      7u

/* Regions of host memory, and the stride of their registers in bytes. */
#define TPU_REGION_MODEL   0u
#define TPU_REGION_INPUT   1u
#define TPU_REGION_OUTPUT  2u
#define TPU_REGION_SCRATCH 3u
#define TPU_REGIONS     4u
#define TPU_REGION_STEP 0x10u

/* Indices of the counters stall_*, and their stride in bytes. */
#define TPU_STALL_FETCH      0u
#define TPU_STALL_LOAD       1u
#define TPU_STALL_ACTIVATE   2u
#define TPU_STALL_STORE      3u
#define TPU_STALL_WEIGHTS    4u
#define TPU_STALL_SHIFT      5u
#define TPU_STALL_ACCUMULATE 6u
#define TPU_STALL_DRAIN      7u
#define TPU_STALL_RING       8u
#define TPU_STALLS     9u
#define TPU_STALL_STEP 0x4u

/* id (ro): 0x41545055, 'ATPU'. */
#define TPU_REG_ID 0x000u

/* version (ro): 0x00010001: version of the programming interface: major, minor (16 bits each). */
#define TPU_REG_VERSION 0x004u

/* config (ro): Parameters of the core. n: rows and columns of the array. lead: cell: lead stages. latency:
   cell: latency. bus_bytes: bytes of one bus beat. in_flight: instructions in flight. */
#define TPU_REG_CONFIG             0x008u
#define TPU_CONFIG_N_MASK          0x000000FFu
#define TPU_CONFIG_N_SHIFT         0u
#define TPU_CONFIG_LEAD_MASK       0x00000F00u
#define TPU_CONFIG_LEAD_SHIFT      8u
#define TPU_CONFIG_LATENCY_MASK    0x0000F000u
#define TPU_CONFIG_LATENCY_SHIFT   12u
#define TPU_CONFIG_BUS_BYTES_MASK  0x00FF0000u
#define TPU_CONFIG_BUS_BYTES_SHIFT 16u
#define TPU_CONFIG_IN_FLIGHT_MASK  0xFF000000u
#define TPU_CONFIG_IN_FLIGHT_SHIFT 24u

/* unified_buffer_depth (ro): Depth of the unified buffer in vectors. */
#define TPU_REG_UNIFIED_BUFFER_DEPTH 0x00Cu

/* accumulator_depth (ro): Depth of the accumulators in rows. */
#define TPU_REG_ACCUMULATOR_DEPTH 0x010u

/* bias_depth (ro): Depth of the bias memory in rows. */
#define TPU_REG_BIAS_DEPTH 0x014u

/* weight_fifo_depth (ro): Capacity of the weight FIFO in tiles. */
#define TPU_REG_WEIGHT_FIFO_DEPTH 0x018u

/* features (ro): Optional features of the core. pooling: POOL. softmax: SOFTMAX. training: SELECT, and the
   fields, formats and codes that need `training`. ring: RING, and the registers that need `ring`. transpose:
   LOAD of transposed tiles. attention: the fields that need `attention`. table_lanes: lanes of the function
   table a cycle; 0: no TABLE, LOAD_TABLE, MULTIPLY. */
#define TPU_REG_FEATURES               0x01Cu
#define TPU_FEATURES_POOLING_MASK      0x00000001u
#define TPU_FEATURES_POOLING_SHIFT     0u
#define TPU_FEATURES_SOFTMAX_MASK      0x00000002u
#define TPU_FEATURES_SOFTMAX_SHIFT     1u
#define TPU_FEATURES_TRAINING_MASK     0x00000004u
#define TPU_FEATURES_TRAINING_SHIFT    2u
#define TPU_FEATURES_RING_MASK         0x00000008u
#define TPU_FEATURES_RING_SHIFT        3u
#define TPU_FEATURES_TRANSPOSE_MASK    0x00000010u
#define TPU_FEATURES_TRANSPOSE_SHIFT   4u
#define TPU_FEATURES_ATTENTION_MASK    0x00000020u
#define TPU_FEATURES_ATTENTION_SHIFT   5u
#define TPU_FEATURES_TABLE_LANES_MASK  0x0000FF00u
#define TPU_FEATURES_TABLE_LANES_SHIFT 8u

/* control (w1): Commands. start: starts a run; ignored during a run, and after a fault until a reset. reset:
   ends the run; clears all units, status, fault and pending interrupt; other registers keep values. */
#define TPU_REG_CONTROL         0x020u
#define TPU_CONTROL_START_MASK  0x00000001u
#define TPU_CONTROL_START_SHIFT 0u
#define TPU_CONTROL_RESET_MASK  0x00000002u
#define TPU_CONTROL_RESET_SHIFT 1u

/* status (ro): State of the core. running: a run is in progress. done: the last run reached HALT; cleared by
   start and reset. fault: the last run ended early; cleared by reset. quiet: no bus transaction is
   outstanding. */
#define TPU_REG_STATUS           0x024u
#define TPU_STATUS_RUNNING_MASK  0x00000001u
#define TPU_STATUS_RUNNING_SHIFT 0u
#define TPU_STATUS_DONE_MASK     0x00000002u
#define TPU_STATUS_DONE_SHIFT    1u
#define TPU_STATUS_FAULT_MASK    0x00000004u
#define TPU_STATUS_FAULT_SHIFT   2u
#define TPU_STATUS_QUIET_MASK    0x00000008u
#define TPU_STATUS_QUIET_SHIFT   3u

/* interrupt (rw): Interrupt. enable: drive `irq`. pending: set when a run ends; write 1 to clear. */
#define TPU_REG_INTERRUPT           0x028u
#define TPU_INTERRUPT_ENABLE_MASK   0x00000001u
#define TPU_INTERRUPT_ENABLE_SHIFT  0u
#define TPU_INTERRUPT_PENDING_MASK  0x00000002u
#define TPU_INTERRUPT_PENDING_SHIFT 1u

/* fault_cause (ro): Cause of the fault: 0 NONE, 1 ILLEGAL, 2 ADDRESS, 3 LENGTH, 4 BUS_READ, 5 BUS_WRITE, 6
   TIMEOUT, 7 RING. */
#define TPU_REG_FAULT_CAUSE 0x02Cu

/* fault_pc (ro): Offset in region MODEL of the instruction at fault. */
#define TPU_REG_FAULT_PC 0x030u

/* timeout (rw): Cycles without progress after which a run ends with TIMEOUT; 0 counts as 1. */
#define TPU_REG_TIMEOUT 0x034u

/* pc (rw): Offset in region MODEL of the first instruction. */
#define TPU_REG_PC 0x038u

/* model_base_low (rw): Region MODEL: address, low 32 bits. */
#define TPU_REG_MODEL_BASE_LOW 0x040u

/* model_base_high (rw): Region MODEL: address, high 32 bits. */
#define TPU_REG_MODEL_BASE_HIGH 0x044u

/* model_size (rw): Region MODEL: size in bytes; the core accesses nothing outside. */
#define TPU_REG_MODEL_SIZE 0x048u

/* input_base_low (rw): Region INPUT: address, low 32 bits. */
#define TPU_REG_INPUT_BASE_LOW 0x050u

/* input_base_high (rw): Region INPUT: address, high 32 bits. */
#define TPU_REG_INPUT_BASE_HIGH 0x054u

/* input_size (rw): Region INPUT: size in bytes; the core accesses nothing outside. */
#define TPU_REG_INPUT_SIZE 0x058u

/* output_base_low (rw): Region OUTPUT: address, low 32 bits. */
#define TPU_REG_OUTPUT_BASE_LOW 0x060u

/* output_base_high (rw): Region OUTPUT: address, high 32 bits. */
#define TPU_REG_OUTPUT_BASE_HIGH 0x064u

/* output_size (rw): Region OUTPUT: size in bytes; the core accesses nothing outside. */
#define TPU_REG_OUTPUT_SIZE 0x068u

/* scratch_base_low (rw): Region SCRATCH: address, low 32 bits. */
#define TPU_REG_SCRATCH_BASE_LOW 0x070u

/* scratch_base_high (rw): Region SCRATCH: address, high 32 bits. */
#define TPU_REG_SCRATCH_BASE_HIGH 0x074u

/* scratch_size (rw): Region SCRATCH: size in bytes; the core accesses nothing outside. */
#define TPU_REG_SCRATCH_SIZE 0x078u

/* cycles (ro): Cycles from start to the end of the last run. */
#define TPU_REG_CYCLES 0x080u

/* busy (ro): Cycles in which a row entered the array. */
#define TPU_REG_BUSY 0x084u

/* stall_fetch (ro): Cycles in which no MATMUL is queued: instructions are being fetched, decoded or
   dispatched. */
#define TPU_REG_STALL_FETCH 0x088u

/* stall_load (ro): Cycles in which the next MATMUL waits for operands or biases from host memory. */
#define TPU_REG_STALL_LOAD 0x08Cu

/* stall_activate (ro): Cycles in which the next MATMUL waits for the activation unit. */
#define TPU_REG_STALL_ACTIVATE 0x090u

/* stall_store (ro): Cycles in which the next MATMUL waits for a STORE. */
#define TPU_REG_STALL_STORE 0x094u

/* stall_weights (ro): Cycles in which the next pass waits for a tile from host memory. */
#define TPU_REG_STALL_WEIGHTS 0x098u

/* stall_shift (ro): Cycles in which the next pass waits for its tile to shift into the array. */
#define TPU_REG_STALL_SHIFT 0x09Cu

/* stall_accumulate (ro): Cycles in which the next pass waits for a read-after-write hazard on the
   accumulators. */
#define TPU_REG_STALL_ACCUMULATE 0x0A0u

/* stall_drain (ro): Cycles in which no MATMUL is left before SYNC or HALT: the pipeline drains. */
#define TPU_REG_STALL_DRAIN 0x0A4u

/* stall_ring (ro): Cycles in which the next MATMUL waits for the ring unit. */
#define TPU_REG_STALL_RING 0x0A8u

/* read_beats (ro): Beats read from the bus. */
#define TPU_REG_READ_BEATS 0x0C0u

/* write_beats (ro): Beats written to the bus. */
#define TPU_REG_WRITE_BEATS 0x0C4u

/* ring (rw): Position of the core in a ring. Write only between runs. rank: rank of this core, below `size`;
   its `m_axis_ring` drives the next rank, modulo `size`. size: number of cores in the ring, 1 to 8. flush:
   discards the vectors in the link FIFO and all that arrive; RING is refused meanwhile. */
#define TPU_REG_RING         0x0C8u
#define TPU_RING_RANK_MASK   0x00000007u
#define TPU_RING_RANK_SHIFT  0u
#define TPU_RING_SIZE_MASK   0x00000F00u
#define TPU_RING_SIZE_SHIFT  8u
#define TPU_RING_FLUSH_MASK  0x00010000u
#define TPU_RING_FLUSH_SHIFT 16u

/* ring_depth (ro): Input buffer of the ring unit in vectors; also the longest segment. */
#define TPU_REG_RING_DEPTH 0x0CCu

/* ring_sent (ro): 32-bit words sent to the ring in the last run. */
#define TPU_REG_RING_SENT 0x0D0u

/* ring_received (ro): 32-bit words received from the ring in the last run. */
#define TPU_REG_RING_RECEIVED 0x0D4u

/* ring_state (ro): State of the links. held: the link FIFO holds a vector. offered: a vector is offered at
   `m_axis_ring`. refused: RING needs a `flush`, except with `size` 1; set by a fault, or a reset in a run or
   with busy links. */
#define TPU_REG_RING_STATE           0x0D8u
#define TPU_RING_STATE_HELD_MASK     0x00000001u
#define TPU_RING_STATE_HELD_SHIFT    0u
#define TPU_RING_STATE_OFFERED_MASK  0x00000002u
#define TPU_RING_STATE_OFFERED_SHIFT 1u
#define TPU_RING_STATE_REFUSED_MASK  0x00000004u
#define TPU_RING_STATE_REFUSED_SHIFT 2u

#endif
