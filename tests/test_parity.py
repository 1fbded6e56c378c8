"""Numbers of the reference implementation: outputs, lengths, losses and gradients of small networks."""

from __future__ import annotations

import pytest

from tests.parity import ROOT, check_case, find_cases
from tests.tiers import usual

#: Every group but the one whose cases have another format (tests/engine/test_updater_parity.py).
GROUPS = sorted({case.parent.name for case in ROOT.glob("*/*.config")} - {"updater"})


#: Layers of cases where hypotheses of the same labels in another order have the same score, as the distribution has no
#: history: which of them a beam keeps is decided by how this CPU rounds. The best one is compared by another layer.
TIES = {"search/explicit_search_sources": ("output",)}


#: Cases that differ by one option of which another case of the same layers has the path through the code, and that take
#: long: a loop optimized or not, another version, one more value of an option.
LONG = {
    "%s/%s" % (group, name)
    for group, names in {
        "cells": "layernormvariants_1 rec_in_rec_lstm_block_inloop rec_in_rec_nativelstm2_inloop rnn_cell_fb0 "
        "rnn_cell_inistate unit_rhn_bwd unit_standardlstm_bwd unit_zoneoutlstm_bwd",
        "models": "asr_att_train asr_att_valid_eval blstm_ctc_scale conformer_norel_bv16 trafo1_train_noopt",
        "rec_train": "att_dot_manual_moved att_feedback_decoder_inloop att_feedback_decoder_moved_bv12 "
        "att_mlp_decoder_moved att_multihead_inloop choice_teacher_0_moved_bv21 "
        "choice_teacher_apply0_inloop cum_concat_att_moved_bv21 "
        "cumsum_layer_inside_moved init_output_base_layer_moved layers_no_rec_inloop loss_inside_inloop "
        "loss_inside_moved_bv30 lstm_explicit_inloop lstm_stack_units_moved name_scopes_moved nested_rec "
        "position_enc_inside_inloop random_sizes_shift_moved rnn_init_default_inloop rnn_init_default_moved_bv21 "
        "rnn_init_float rnn_init_var_moved rnn_init_zero window_in_loop_moved",
        "search": "att_beam3 att_beam3_bv12 att_feedback_beam3_trainmode att_greedy prev_ctx_only self_att_decoder "
        "timesync_beam3 timesync_beam4_nonorm_bv21",
    }.items()
    for name in names.split()
}


@pytest.mark.parametrize("name", usual(find_cases(*GROUPS), set(find_cases(*GROUPS)) - LONG))
def test_case(name: str) -> None:
    check_case(name, any_order=TIES.get(name, ()))


def test_cases_are_there() -> None:
    assert set(find_cases(*GROUPS)) >= LONG
    assert len(find_cases(*GROUPS)) > 590
