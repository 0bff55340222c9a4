"""How a consumer multiplies what a producer puts into a ring of stages in shared memory: shared by products and convolutions.

Barrier s: stage s is full; STAGES + s: it is empty; 2 STAGES + c: consumer c's turn to multiply, where they alternate.
"""

from __future__ import annotations

LINE = 128  # bytes of a line of a tile in shared memory: its 16-byte pieces are swizzled
BOX = 64  # rows of a box that is read across the depth


def products_of_ring(
    rows: int, tile_rows: int, alternating: bool, instruction: str, a_across: bool, b_across: bool, first: str, end: str
) -> str:
    """Statements that sum the stages `first` to `end` into d, give them back, and `continue` where the turn is another's.

    rows: 64 or 128, of a consumer; tile_rows: of A in a stage, behind which B lies; instruction: multiplies 64 rows;
    a_across, b_across: how the operands lie; first, end: names of numbers. A stage is given back when the next one is under
    way, so that two are multiplied at a time.
    """
    own = "turn == consumer" if alternating else "true"
    # Consumer 0's turn comes when consumer 1 has given it once less than it had turns, at first at once.
    wait = "mbarrier_wait(barriers + 8 * (2 * STAGES + consumer), (mine++ + 1 - consumer) & 1);" if alternating else ""
    give = "if (threadIdx.x % 128 == 0) mbarrier_arrive(barriers + 8 * (2 * STAGES + 1 - consumer));" if alternating else ""
    half = "" if alternating else f" + consumer * {rows * LINE}"
    step_a, step_b = (128 if across else 2 for across in (a_across, b_across))
    return f"""if (!({own})) {{  // the other consumer's: step over its stages
                const int passed = stage + {end} - {first};
                parity ^= passed / STAGES & 1;
                stage = passed % STAGES;
                continue;
            }}
            int before = -1;
            {wait}
            for (int chunk = {first}; chunk < {end}; chunk++) {{
                mbarrier_wait(barriers + 8 * stage, parity);
                const unsigned int a = ring + stage * STAGE_BYTES{half};
                const unsigned int b = ring + stage * STAGE_BYTES + {tile_rows * LINE};
                const unsigned long long right = matrix_descriptor(b, {BOX * LINE}, 1024);
                wgmma_fence();
                #pragma unroll
                for (int i = 0; i < {rows // 64}; i++) {{
                    const unsigned long long left = matrix_descriptor(a + i * {64 * LINE}, {BOX * LINE}, 1024);
                    #pragma unroll
                    for (int j = 0; j < 4; j++) {{
                        {instruction}(d[i], left + {step_a} * j, right + {step_b} * j, chunk > {first} || j > 0);
                    }}
                }}
                wgmma_commit();
                wgmma_wait<1>();
                if (before >= 0 && threadIdx.x % 128 == 0) mbarrier_arrive(barriers + 8 * (STAGES + before));
                before = stage;
                if (++stage == STAGES) {{
                    stage = 0;
                    parity ^= 1;
                }}
            }}
            {give}
            wgmma_wait<0>();
            if (threadIdx.x % 128 == 0) mbarrier_arrive(barriers + 8 * (STAGES + before));
            #pragma unroll
            for (int i = 0; i < {rows // 64}; i++) settle(d[i]);"""
