"""The `openai` client against a server at argv[1]: a line of JSON [what, problem or "", detail] for each check."""
import asyncio
import json
import sys
import urllib.request

import openai

URL = sys.argv[1]
CLIENT = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
COMMON = {"model": "demo-model", "prompt": "Once upon a time", "max_tokens": 16, "temperature": 0}
CHAT = {"model": "demo-model", "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "A word?"}],
        "max_tokens": 16, "temperature": 0}
complete, chat = CLIENT.completions.create, CLIENT.chat.completions.create


def models():
    ids = [m.id for m in CLIENT.models.list()]
    assert CLIENT.models.retrieve(ids[0]).id == ids[0]
    return ", ".join(ids)


def completion():
    r = complete(**COMMON)
    assert r.usage.completion_tokens <= 16 and r.choices[0].finish_reason in ("length", "stop")
    return f"{r.usage.completion_tokens} tokens"


def stream():
    whole = complete(**COMMON)
    text, usage = "", None
    for event in complete(**COMMON, stream=True, stream_options={"include_usage": True}):
        text += event.choices[0].text if event.choices else ""
        usage = event.usage or usage
    assert text == whole.choices[0].text and usage == whole.usage
    return f"{len(text)} characters, usage"


def logprobs():
    p = complete(**COMMON, logprobs=3).choices[0].logprobs
    assert len(p.tokens) == len(p.token_logprobs) == len(p.top_logprobs) == len(p.text_offset)
    assert all(x <= 0 and max(t.values()) == x for x, t in zip(p.token_logprobs, p.top_logprobs))
    return f"{len(p.tokens)} tokens, greedy ones the likeliest"


def echo():
    p = complete(**{**COMMON, "max_tokens": 1}, logprobs=1, echo=True).choices[0]
    assert p.text.startswith("Once upon a time") and p.logprobs.token_logprobs[0] is None
    return f"{len(p.logprobs.tokens)} tokens"


def stop():
    text = complete(**COMMON).choices[0].text
    word = text.split()[2]
    cut = complete(**COMMON, stop=[word, "\n\n"]).choices[0]
    assert cut.text == text[:text.index(word)] and cut.finish_reason == "stop"
    return repr(word)


def choices():
    asked = {**COMMON, "temperature": 1, "n": 3, "seed": 7}
    a, b = complete(**asked), complete(**asked)
    assert [c.text for c in a.choices] == [c.text for c in b.choices] and len({c.text for c in a.choices}) > 1
    return "n=3, repeated with its seed"


def batch():
    r = complete(**{**COMMON, "prompt": ["Once", "The old man"]})
    assert [c.index for c in r.choices] == [0, 1]
    return "2 prompts"


def chatting():
    r = chat(**CHAT, logprobs=True, top_logprobs=2)
    content = r.choices[0].logprobs.content
    assert r.choices[0].message.role == "assistant" and len(content) == r.usage.completion_tokens
    assert all(len(t.top_logprobs) == 2 for t in content)
    return f"{len(content)} tokens with logprobs"


def chat_parts():
    parts = [{"role": "user", "content": [{"type": "text", "text": "A "}, {"type": "text", "text": "word?"}]}]
    r = chat(**{**CHAT, "messages": parts})
    return f"{r.usage.prompt_tokens} prompt tokens"


def chat_stream():
    whole, text = chat(**CHAT).choices[0].message.content, ""
    with CLIENT.chat.completions.stream(**CHAT, stream_options={"include_usage": True}) as events:
        try:
            for event in events:
                text += event.delta if event.type == "content.delta" else ""
        except openai.LengthFinishReasonError as e:  # that is how this helper tells of finish_reason "length"
            assert e.completion.usage.completion_tokens == CHAT["max_tokens"]
    assert text == whole
    return f"{len(text)} characters"


def neutral():
    more = {"user": "me", "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "top_p": 1, "n": 1}
    complete(**COMMON, **more, best_of=1, suffix=None, logprobs=None)
    chat(**CHAT, **more, response_format={"type": "text"}, store=False, metadata={"a": "b"}, reasoning_effort="none",
         parallel_tool_calls=True, tools=[], tool_choice="auto", service_tier="auto", verbosity="medium")
    return "user, penalties of 0, empty lists"


def refused():
    said = []
    for more in ({"frequency_penalty": 1}, {"logit_bias": {"5": 2}}, {"best_of": 4}, {"suffix": "end"}):
        try:
            complete(**COMMON, **more)
        except openai.BadRequestError as e:
            assert e.param in more, e.param
            said.append(e.param)
    for more in ({"response_format": {"type": "json_object"}},
                 {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}):
        try:
            chat(**CHAT, **more)
        except openai.BadRequestError as e:
            assert e.param in more, e.param
            said.append(e.param)
    assert len(said) == 6, said
    try:
        complete(**{**COMMON, "model": "gpt-4"})
        raise AssertionError("another model was taken")
    except openai.NotFoundError as e:
        said.append(e.param)
    return ", ".join(said)


def held():
    lines = urllib.request.urlopen(URL + "/metrics").read().decode().splitlines()
    return int(next(l.split()[1] for l in lines if l.startswith("fewbit_requests_running ")))


def leaving():
    events = complete(**{**COMMON, "max_tokens": 900, "n": 4}, stream=True, extra_body={"ignore_eos": True})
    next(iter(events))
    events.close()
    for _ in range(200):
        if held() == 0:
            return "its sequences ended"
        import time
        time.sleep(0.05)
    raise AssertionError("its sequences go on")


def together():
    client = openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    prompts = ["Once", "The old man", "It was", "She said", "In the", "They", "He", "There was"]

    async def one(prompt):
        text = ""
        async for event in await client.completions.create(**{**COMMON, "prompt": prompt}, stream=True):
            text += event.choices[0].text
        return text

    async def all_of_them():
        return await asyncio.gather(*map(one, prompts))

    found = asyncio.run(all_of_them())
    assert found == [complete(**{**COMMON, "prompt": p}).choices[0].text for p in prompts]
    return f"{len(prompts)} streams at once, each as alone"


CHECKS = {"models": models, "completion": completion, "stream": stream, "logprobs": logprobs, "echo with logprobs": echo,
          "stop": stop, "n, seed": choices, "several prompts": batch, "chat": chatting, "chat in parts": chat_parts,
          "chat, streamed": chat_stream, "neutral values": neutral, "what is not done": refused, "a client that leaves": leaving,
          "async": together}
for what, check in CHECKS.items():
    try:
        print(json.dumps([what, "", check()]), flush=True)
    except Exception as e:
        print(json.dumps([what, f"{type(e).__name__}: {e}"[:300], ""]), flush=True)
