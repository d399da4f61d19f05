"""The whole pipeline as Python calls, on the demo's small local web.

python examples/whole_pipeline.py my-corpus
"""

from __future__ import annotations

import sys

import webtext
from pipelines.demo.corpus import write_demo_corpus
from pipelines.demo.web import demo_web

# A model that trains in seconds; without `set`, PretrainConfig trains the whole preset.
SMALL = ("layers=2", "width=64", "heads=2", "steps=40", "warmup_steps=4", "eval_every=20", "eval_blocks=8")


def main(corpus: str, workers: int = 2) -> None:
    """Build a corpus, a tokenizer, a model and an overlap report, each in a folder of its own."""
    # Finished stages are only verified: re-run the script to resume.
    options = webtext.RunOptions(executor=webtext.make_executor(workers))
    write_demo_corpus(corpus)  # CORPUS/dumps: submissions that link to the demo's web
    links, pages, documents = f"{corpus}/scrape", f"{corpus}/fetch", f"{corpus}/remove-wikipedia"

    # Links with at least 3 karma; a single subreddit and few shards, to keep this example quick.
    config = webtext.ScrapeConfig(min_score=3, subreddit=("Python",), shards=4)
    scraped = webtext.scrape(config, dumps=[f"{corpus}/dumps/*.zst"], output=links, options=options)
    print(f"{scraped.records_in} submissions, {scraped.records_out} links; dropped: {dict(scraped.dropped)}")

    # The pages as WARC. On the real web, set `contact` and keep the default delay of 1 s per host.
    with demo_web():
        webtext.fetch(webtext.FetchConfig(per_host_delay=0.0), links=links, output=pages, options=options)

    # Their text, without duplicates and without Wikipedia.
    text, good, unique = f"{corpus}/extract", f"{corpus}/filter", f"{corpus}/dedup"
    webtext.extract(webtext.ExtractConfig(), pages=pages, links=links, output=text, options=options)
    webtext.filter(webtext.FilterConfig(language=("en",)), documents=text, output=good, options=options)
    webtext.dedup(webtext.DedupConfig(threshold=0.8), documents=good, output=unique, options=options)
    webtext.remove_wikipedia(webtext.RemoveWikipediaConfig(), documents=unique, output=documents, options=options)

    # A tokenizer, token shards, a model and a sample of its text.
    tokenizer, tokens, model = f"{corpus}/train-bpe", f"{corpus}/tokenize", f"{corpus}/pretrain"
    webtext.train_bpe(webtext.TrainBpeConfig(vocab_size=2048), documents=documents, output=tokenizer, options=options)
    webtext.tokenize(
        webtext.TokenizeConfig(held_out=0.1), documents=documents, tokenizer=tokenizer, output=tokens, options=options
    )
    webtext.pretrain(webtext.PretrainConfig(preset="tiny", set=SMALL), tokens=tokens, output=model, options=options)
    for sample in webtext.generate(model, ["Return a"], 1, webtext.SamplingOptions(max_tokens=40)):
        print(sample.prompt + sample.text)

    # An index of its words for `webtext search`.
    webtext.search(webtext.SearchConfig(), documents=documents, output=f"{corpus}/search", options=options)

    # Which 8-grams of a benchmark occur in the corpus: in a Bloom filter to share, and exactly.
    index, report = f"{corpus}/overlap-index", f"{corpus}/overlap-report"
    webtext.overlap_index(webtext.OverlapIndexConfig(), documents=documents, output=index, options=options)
    benchmarks = [f"language-reference={corpus}/benchmarks/language-reference.jsonl"]
    audit = webtext.overlap_report(
        webtext.OverlapReportConfig(), documents=documents, benchmarks=benchmarks, output=report, options=options
    )
    for benchmark in audit.extra["benchmarks"]:
        print(f"{benchmark['name']}: {benchmark['percent_positions']:.1f}% of its 8-grams occur in the corpus")


if __name__ == "__main__":
    main(*sys.argv[1:])
