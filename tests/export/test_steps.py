"""Single steps of loops: a search over the exported graph finds what the search of the network finds."""

from __future__ import annotations

import numpy
import pytest

from tests.export.step_models import MODELS, config_of, decoder_of, feed_of, search, searching


def check_search(net, config, folder, feed, **options):
    """Search over single steps: hypotheses and scores are those of the network."""
    expected = net.run(feed, fetch=["output"]).layers["output"]
    with decoder_of(net, config, folder, **options) as (decoder, facts):
        found = search(decoder, facts, feed)
    seqs, beam = expected.beam_scores.shape
    numpy.testing.assert_allclose(found.scores, expected.beam_scores, rtol=1e-5, atol=1e-5)
    lens = expected.sizes[1]
    lens = numpy.repeat(lens, beam) if lens.size == seqs < seqs * beam else numpy.broadcast_to(lens, [seqs * beam])
    numpy.testing.assert_array_equal(found.lengths.reshape(-1), lens)
    inside = numpy.arange(expected.value.shape[1]) < lens[:, None]
    labels = found.labels[-1].reshape(seqs * beam, -1)
    numpy.testing.assert_array_equal(numpy.where(inside, expected.value, 0), labels)
    return found


@pytest.mark.parametrize("name", list(MODELS))
def test_search_over_steps(name, tmp_path):
    """The beam search over exported steps gives the hypotheses and scores of the search of the network."""
    config = config_of(MODELS[name]())
    net = searching(config)
    check_search(net, config, tmp_path, feed_of())
