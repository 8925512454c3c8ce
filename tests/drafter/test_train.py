"""Training: the loss falls, a resumed run ends exactly where an uninterrupted one does, evaluation is honest."""

import pytest
import torch

from recguide.drafter.dialogues import Dialogue
from recguide.drafter.train import CleanText, CleanTexts, Trainer, TrainSettings, expected_accepted
from recguide.engine.sampling import SamplingParams
from recguide.errors import RecGuideError
from recguide.models.adapter import load_adapter
from tests.helpers import agreeing_model, make_engine, run, small_model

SETTINGS = TrainSettings(
    chain=8,
    steps=12,
    rows=96,
    sequences=4,
    rank=4,
    warmup=3,
    top=8,
    learning_rate=5e-3,
    draft_shift=0,
    adapt_tokens=True,
)


def own_dialogues(model, count=10, length=40, temperature=0.0, last=5):
    """Prompts that end in one token, answered by the model itself."""
    prompts = [[i % 13, (3 * i + 1) % 13, last] for i in range(count)]
    params = [SamplingParams(max_new_tokens=length, temperature=temperature, seed=i, eos_ids=()) for i in range(count)]
    made = make_engine(model).generate(prompts, params)
    return [Dialogue(r.prompt, r.output, "qa") for r in made]


MODEL = small_model(rank=0, pack=False)  # packed weights have no gradient
DIALOGUES = own_dialogues(MODEL)
UNSEEN = own_dialogues(MODEL, last=7)


def trainer(folder, settings=SETTINGS, model=MODEL):
    return Trainer(model, DIALOGUES, settings, folder)


@pytest.mark.parametrize(("shift", "adapt_tokens"), [(0, True), (1, True), (1, False)])
def test_the_loss_falls_and_drafts_get_better(tmp_path, shift, adapt_tokens):
    settings = TrainSettings(**{**vars(SETTINGS), "steps": 120, "draft_shift": shift, "adapt_tokens": adapt_tokens})
    made, losses = trainer(tmp_path, settings), []
    made.held_out = UNSEEN  # the two of ten that are held out say little
    before = expected_accepted(made.evaluate())
    made.run(lambda report: losses.append(report.loss))
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])  # soft targets leave the verifier's entropy
    assert expected_accepted(made.evaluate()) > before + 0.4


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    trainer(tmp_path / "whole").run(lambda _: None)
    for stop in (3, 7):

        def interrupt(report, stop=stop):
            if report.step == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            trainer(tmp_path / "parts").run(interrupt)
    last = trainer(tmp_path / "parts")
    assert last.step == 7
    last.run(lambda _: None)
    whole = trainer(tmp_path / "whole")
    assert whole.step == last.step == 12
    for name, value in whole.adapter.state_dict().items():
        assert torch.equal(value, last.adapter.state_dict()[name]), name


def test_a_finished_run_does_nothing_more(tmp_path):
    trainer(tmp_path).run(lambda _: None)
    reports = []
    trainer(tmp_path).run(reports.append)
    assert reports == []


def test_a_sitting_ends_when_its_time_is_over(tmp_path):
    made = trainer(tmp_path)
    made.run(lambda _: None, minutes=0)
    assert made.step == 0
    assert (tmp_path / "state.pt").exists()


@pytest.mark.parametrize("change", [{"rank": 2}, {"seed": 1}, {"steps": 13}, {"soft": 0.5}])
def test_other_settings_are_refused(tmp_path, change):
    trainer(tmp_path).save()
    with pytest.raises(RecGuideError, match="other settings or another model") as caught:
        trainer(tmp_path, TrainSettings(**(vars(SETTINGS) | change)))
    assert str(tmp_path) in str(caught.value)


def test_another_model_is_refused(tmp_path):
    trainer(tmp_path).save()
    with pytest.raises(RecGuideError, match="another model"):
        trainer(tmp_path, model=small_model(seed=9, rank=0, pack=False))


def test_a_damaged_state_is_told_in_one_line(tmp_path):
    trainer(tmp_path).save()
    path = tmp_path / "state.pt"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(RecGuideError, match=r"state\.pt"):
        trainer(tmp_path)


def test_a_packed_model_is_refused(tmp_path):
    """Its linear maps pass no gradient back: the run would learn next to nothing and not say so."""
    with pytest.raises(RecGuideError, match="pack"):
        trainer(tmp_path, model=small_model(rank=0)).run(lambda _: None)


def test_what_is_held_out_is_spread_over_all_and_not_trained_on(tmp_path):
    numbered = [Dialogue(d.prompt, [*d.answer, i % 13, i // 13], "qa") for i, d in enumerate(DIALOGUES * 10)]
    made = Trainer(MODEL, numbered, SETTINGS, tmp_path)
    assert [numbered.index(d) for d in made.held_out] == [0, 25, 50, 75]
    assert [d for d in numbered if d not in made.held_out] == made.dialogues
    assert len(trainer(tmp_path).held_out) == 2  # of ten


def test_too_few_dialogues_are_refused(tmp_path):
    short = [Dialogue(d.prompt, d.answer[:7], d.category) for d in DIALOGUES[7:]]
    with pytest.raises(RecGuideError, match="7 dialogues of 8 tokens or more are too few"):
        Trainer(MODEL, DIALOGUES[:7] + short, SETTINGS, tmp_path)


def test_the_saved_adapter_drafts_in_the_engine(tmp_path):
    """Training pays where it should: more accepted drafts of ``linear`` than with the untrained adapter, same text."""
    settings = TrainSettings(**{**vars(SETTINGS), "steps": 120})
    trainer(tmp_path, settings).run(lambda _: None)
    model, dialogue = small_model(rank=0), DIALOGUES[6]
    before = run(small_model(rank=0), "linear:8", dialogue.prompt, max_new_tokens=40)
    model.adapter = load_adapter(tmp_path / "adapter", model.config, model.fingerprint)
    after = run(model, "linear:8", dialogue.prompt, max_new_tokens=40)
    assert before.output == after.output == dialogue.answer
    assert after.stats.mean_acceptance_length > before.stats.mean_acceptance_length


def test_only_the_adapter_is_trained(tmp_path):
    weights = [MODEL.backbone.embedding.clone(), MODEL.backbone.head(torch.eye(32)).clone()]
    trainer(tmp_path).run(lambda _: None)
    assert torch.equal(weights[0], MODEL.backbone.embedding)
    assert torch.equal(weights[1], MODEL.backbone.head(torch.eye(32)))
    assert MODEL.adapter is None


def test_clean_text_is_what_the_verifier_says():
    """Row t is about the token at place t: in greedy answers that is the verifier's best; prompt rows stay empty."""
    for dialogue in DIALOGUES[:3]:
        clean, first = CleanText(MODEL, dialogue, top=4), len(dialogue.prompt)
        assert clean.tokens.tolist() == dialogue.prompt + dialogue.answer
        assert clean.top_ids[first:, 0].tolist() == dialogue.answer
        torch.testing.assert_close(clean.top_probabilities[first:].sum(-1), torch.ones(len(dialogue.answer)))
        assert (clean.top_probabilities.diff(dim=-1) <= 0).all()
        assert not clean.top_probabilities[:first].any()


def test_clean_text_holds_the_engines_cache():
    """K/V of the frozen rows are those that the engine commits for the same tokens."""
    dialogue = DIALOGUES[0]
    clean, engine = CleanText(MODEL, dialogue, top=1), make_engine(MODEL, max_concurrency=1)
    engine.submit(dialogue.prompt, SamplingParams(max_new_tokens=len(dialogue.answer) + 1, eos_ids=()))
    for _ in dialogue.answer:
        engine.step()
    size = len(dialogue.prompt) + len(dialogue.answer) - 1
    for layer, (keys, values) in enumerate(zip(clean.keys, clean.values, strict=True)):
        torch.testing.assert_close(keys[:, :size], engine._cache.k[layer, 0, :, :size], atol=1e-4, rtol=0)
        torch.testing.assert_close(values[:, :size], engine._cache.v[layer, 0, :, :size], atol=1e-4, rtol=0)


def test_clean_texts_are_kept_while_they_fit():
    size = CleanText(MODEL, DIALOGUES[0], top=1).bytes
    texts = CleanTexts(MODEL, 1, budget=2 * size + size // 2)
    first = [texts.get(d) for d in DIALOGUES[:3]]
    again = [texts.get(d) for d in DIALOGUES[:3]]
    assert [a is b for a, b in zip(first, again, strict=True)] == [True, True, False]
    assert all(torch.equal(a.keys[0], b.keys[0]) for a, b in zip(first, again, strict=True))


def test_evaluation_of_a_perfect_drafter_is_one(tmp_path):
    model = agreeing_model(pack=False)
    made = Trainer(model, own_dialogues(model), SETTINGS, tmp_path)
    assert made.evaluate() == [1.0] * 7
    assert expected_accepted(made.evaluate()) == 7


def test_evaluation_equals_acceptance_in_the_engine(tmp_path):
    """The same blocks, drafted by the engine from the same seeds: the same drafts, so the same acceptance."""
    made = trainer(tmp_path)
    for parameter in made.adapter.parameters():
        parameter.data.normal_(0, 0.2, generator=torch.Generator().manual_seed(3))
    model = small_model(rank=0)
    model.adapter = made.adapter
    reached, accepted = [0] * 7, [0] * 7
    for dialogue in made.held_out:
        text = dialogue.prompt + dialogue.answer
        for at in range(len(dialogue.prompt) - 1, len(text) - 1, 8):
            masks = min(7, len(text) - 1 - at)
            engine = make_engine(model, "linear:8", max_concurrency=1)
            request = engine.submit(text[: at + 1], SamplingParams(max_new_tokens=masks + 1, eos_ids=()))
            engine.step()
            assert len(request.draft.tokens) == masks
            for j, token in enumerate(request.draft.tokens):
                reached[j] += 1
                accepted[j] += token == text[at + 1 + j]
                if token != text[at + 1 + j]:
                    break
    assert made.evaluate() == pytest.approx([a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True)])


def test_expected_accepted_is_the_sum_of_survivals():
    assert expected_accepted([0.5, 0.5, 1.0]) == pytest.approx(0.5 + 0.25 + 0.25)
    assert expected_accepted([]) == 0
