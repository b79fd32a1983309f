"""Renders random expressions, and the templates of the reference folder, by `runner template` and by Jinja, and compares.

Jinja has the environment that transformers makes for chat templates: sandboxed, immutable, trim_blocks, lstrip_blocks, loop
controls, `generation`, json.dumps as `tojson`, raise_exception, strftime_now. Each case is rendered by both; it is the same
where both give the same text or both refuse. Where fewbit says that something is not implemented, it is counted apart.
"""
import argparse
import datetime
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

import jinja2
import jinja2.ext
import jinja2.sandbox

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda f: datetime.datetime.now().strftime(f)
    return env


VARIABLES = {
    "text": "ab数据 é👍End", "words": " the Quick\tbrown\n fox-jumps ", "empty": "", "quoted": "it's \"q\" \\ <&>", "zero": 0, "n": 7,
    "neg": -3, "x": 2.5, "yes": True, "no": False, "nothing": None, "list": [3, 1, 2, 3], "names": ["ann", "Bob", "Čud", "ann"],
    "mixed": [1, "a", None, True, 2.0, [1, 2], {"k": "v"}], "users": [{"name": "Ann", "age": 41, "tags": ["x"]}, {"name": "bo", "age": 22},
    {"name": "Cé", "age": 35, "tags": []}], "map": {"b": 1, "a": [1, {"k": "v"}], "items": 3, "é": "ü"}, "pairs": [["a", 1], ["b", 2]],
    "think": "<think>\nwhy\n</think>\n\nanswer </think> end", "lines": "one\n two\r\nthree\n\n",
}


class Maker:
    """Random templates. What stands where is mostly of a fitting kind, and sometimes not."""

    def __init__(self, rng):
        self.r = rng

    def pick(self, *choices):
        return self.r.choice(choices)

    def integer(self):
        return str(self.pick(0, 1, 2, 3, -1, -2, 5, 10, 100))

    def quoted(self):
        return self.pick("''", "'a'", "' '", "'n'", "'数'", "'</think>'", "'-'", "'\\n'", "'é'", "'Ab c'", '"it\'s"', "'%s-%s'", "'\\u00e9\\x41'", "','", "'b'")

    def text(self, d):
        if d <= 0 or self.r.random() < 0.2:
            return self.pick("text", "words", "empty", "quoted", "think", "lines", self.quoted(), self.quoted())
        t, u, i, j = self.text(d - 1), self.text(d - 2), self.integer(), self.integer()
        return self.pick(
            f"{t}[{i}:]", f"{t}[:{i}]", f"{t}[{i}:{j}]", f"{t}[::{self.pick('-1', '2', '-2')}]", f"{t}[{i}]", f"{t}.strip()", f"{t}.strip({u})",
            f"{t}.lstrip({self.quoted()})", f"{t}.rstrip('\\n')", f"{t}.upper()", f"{t}.lower()", f"{t}.title()", f"{t}.capitalize()", f"{t}.replace({u}, {self.quoted()})",
            f"{t}.replace({self.quoted()}, {u}, {i})", f"{t}.split({self.quoted()})[{i}]", f"{t}.rsplit({self.quoted()}, {i})[0]", f"({t} + {u})", f"({t} ~ {self.any(d - 1)})",
            f"({t} | trim)", f"({t} | upper)", f"({t} | title)", f"({t} | capitalize)", f"({t} | replace({self.quoted()}, {self.quoted()}))", f"({t} | indent({self.pick(1, 2, 4)}))",
            f"({self.any(d - 1)} | string)", f"({self.any(d - 1)} | tojson)", f"({self.any(d - 1)} | tojson(indent={self.pick(1, 2)}))", f"({self.list(d - 1)} | join({self.quoted()}))",
            f"({t} if {self.truth(d - 1)} else {u})", f"({t} or {u})", f"({t} and {u})", f"({t} | default({u}, true))", f"({t} | first)", f"({t} | last)", f"({t} | reverse)",
            f"{self.quoted()}.join({self.list(d - 1)})", f"({t} | e)", f"(({t} | safe) + {u})", f"({u} + ({t} | e))", f"({t} | center({self.pick(3, 10, 20)}))", f"({t} * {self.pick(0, 1, 3, -1)})",
            f"{t}.center({self.pick(4, 9)}, '*')", f"{t}.zfill({self.pick(4, 9)})", f"{t}.removeprefix({u})", f"{t}.removesuffix({u})", f"({t} | truncate({self.pick(3, 5, 8)}))",
            f"('%s|%5s|%-5s|%.2s' % ({t}, {u}, {self.any(0)}, {t}))", f"('%d %5.2f %e %x %g' % ({self.number(0)}, {self.number(0)}, {self.number(0)}, {i}, {self.number(0)}))",
            f"({t} | truncate({self.pick(3, 8)}, true, '…', 0))", f"({t} | list | string)", f"{t}.partition({self.quoted()})[{self.pick(0, 1, 2)}]")

    def number(self, d):
        if d <= 0 or self.r.random() < 0.2:
            return self.pick("zero", "n", "neg", "x", self.integer(), "1.5", "1e3", "0.1", "1e16", "1e-5", "2.0", "yes", "1_000", "0x1F")
        a, b = self.number(d - 1), self.number(d - 2)
        return self.pick(
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} / {b})", f"({a} // {b})", f"({a} % {b})", f"({a} ** {self.pick(0, 1, 2, 3, -1)})", f"-{a}", f"({a} | abs)",
            f"({a} | round)", f"({a} | round({self.pick(0, 1, 2)}))", f"({a} | round(1, {self.pick(repr('ceil'), repr('floor'))}))", f"({a} | int)", f"({a} | float)", f"({self.text(d - 1)} | length)",
            f"({self.list(d - 1)} | length)", f"({self.list(d - 1)} | sum)", f"({self.text(d - 1)} | int)", f"({self.text(d - 1)} | float({b}))", f"{self.text(d - 1)}.find({self.quoted()})",
            f"{self.text(d - 1)}.count({self.quoted()})", f"({self.list(d - 1)} | max)", f"({self.list(d - 1)} | min)", f"{self.list(d - 1)}[{self.integer()}]", f"({a} if {self.truth(d - 1)} else {b})",
            f"{self.text(d - 1)}.rfind({self.quoted()}, {self.integer()})", f"({self.text(d - 1)} | wordcount)")

    def list(self, d):
        if d <= 0 or self.r.random() < 0.2:
            return self.pick("list", "names", "mixed", "users", "pairs", "[]", "[1, 2, 3]", "(1, 'b')", "['x', 'y']", "range(3)", "range(5, 0, -2)", "()", "('t',)")
        a, t, i = self.list(d - 1), self.text(d - 1), self.integer()
        return self.pick(
            f"{a}[{i}:]", f"{a}[:{i}]", f"{a}[::-1]", f"({a} + {self.list(d - 2)})", f"({a} | list)", f"({a} | sort | list)", f"({a} | sort(reverse=true))", f"({a} | unique | list)", f"({a} | reverse | list)",
            f"({a} | map('string') | list)", f"({a} | map('upper') | list)", f"({a} | select('string') | list)", f"({a} | reject('none') | list)", f"({a} | select | list)",
            f"(users | map(attribute={self.pick(repr('name'), repr('age'), repr('tags'), repr('tags.0'))}) | list)", f"(users | selectattr('age', '>', {self.pick(20, 30, 40)}) | list)",
            f"(users | rejectattr('tags') | map(attribute='name') | list)", f"(users | sort(attribute={self.pick(repr('name'), repr('age'))}) | map(attribute='name') | list)", f"{t}.split()", f"{t}.split({self.quoted()})",
            f"{t}.split({self.quoted()}, {self.pick(0, 1, 2)})", f"{t}.splitlines()", f"{t}.rsplit(none, 1)", f"({t} | list)", f"({a} | batch({self.pick(1, 2, 3)}) | list)", f"({a} | slice({self.pick(1, 2, 3)}) | list)",
            f"(map | dictsort | list)", f"(map | items | list)", f"(map.keys() | list)", f"[{self.any(d - 1)}, {self.any(d - 2)}]", f"({self.any(d - 1)}, {self.any(d - 2)})", f"({a} | groupby({self.pick(0, repr('name'))}) | list)",
            f"({a} * {self.pick(0, 2, -1)})", f"(users | groupby('age') | list)", f"({a} | map('default', 'd', true) | list)", f"(users | map(attribute='none', default='-') | list)", f"({a} | batch(2, 'f') | list)")

    def truth(self, d):
        if d <= 0:
            return self.pick("yes", "no", "true", "false", "zero", "missing is defined", "nothing is none")
        a, b = self.any(d - 1), self.any(d - 1)
        tests = ("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "callable", "lower", "upper", "even", "odd")
        return self.pick(
            f"({a} is {self.pick(*tests)})", f"({a} is not {self.pick(*tests)})", f"({a} == {b})", f"({a} != {b})", f"({self.number(d - 1)} {self.pick('<', '<=', '>', '>=')} {self.number(d - 1)})",
            f"({self.text(d - 1)} {self.pick('<', '<=', '>', '>=')} {self.text(d - 1)})", f"({self.number(0)} < {self.number(0)} <= {self.number(0)})", f"({a} in {self.list(d - 1)})",
            f"({self.quoted()} {self.pick('in', 'not in')} {self.text(d - 1)})", f"(not {a})", f"({self.quoted()} in map)", f"({self.truth(d - 1)} {self.pick('and', 'or')} {self.truth(d - 2)})",
            f"{self.text(d - 1)}.startswith({self.quoted()})", f"{self.text(d - 1)}.endswith(('d', {self.quoted()}))", f"{self.text(d - 1)}.{self.pick('isdigit', 'isalpha', 'isspace', 'isupper', 'islower', 'isalnum')}()",
            f"({a} is divisibleby 2)", f"({a} is in {self.list(0)})", f"({a} is eq {b})", f"({a} < {b})")

    def any(self, d):
        if d <= 0 or self.r.random() < 0.1:
            return self.pick("missing", "nothing", "map", "mixed", "users[0]", "map.a", "map['items']", "map.é", "users[1].tags", "list[9]", "map.items", "{'k': 1, 2: none}", "dict(a=1)", "{}", "map.get('zz', 'd')",
                             "map.values()", "map.keys()", "map.items()", "x", "n", "yes")
        return self.r.choice((self.text, self.number, self.list, self.truth))(d)

    def template(self):
        d = self.pick(1, 2, 2, 3)
        e = lambda: self.any(d)
        blank = lambda: self.pick("", " ", "\n", "\n  ", " \n\t", "  x \n")
        m, p = lambda: self.pick("", "", "-", "+"), lambda: self.pick("", "", "-", "+")
        body = f"{blank()}{{{{ {e()} }}}}{blank()}"
        if self.r.random() < 0.6:
            return f"{{{{ {e()} }}}}"
        return self.pick(
            f"{blank()}{{%{m()} if {self.truth(d)} {p()}%}}{body}{{%{m()} else {p()}%}}{blank()}no{{%{m()} endif {p()}%}}{blank()}end",
            f"{{%{m()} for v in {self.list(d)} {p()}%}}{blank()}{{{{ loop.index }}}}:{{{{ v }}}}{{{{ ',' if not loop.last }}}}{blank()}{{%{m()} else {p()}%}}none{{%{m()} endfor {p()}%}}{blank()}",
            f"{{% for v in {self.list(d)} if v {p()}%}}{{{{ loop.length }}}}{{{{ loop.previtem is defined }}}}{{{{ v }}}}{{% if loop.index > 1 %}}{{% {self.pick('break', 'continue')} %}}{{% endif %}}{blank()}{{% endfor %}}",
            f"{{% for k, v in {self.pick('map.items()', 'map | items', 'map | dictsort', 'pairs', 'mixed', 'users[0].items()')} %}}{{{{ k }}}}={{{{ v }}}};{{% endfor %}}",
            f"{{% macro f(a, b={self.any(0)}) {p()}%}}{blank()}[{{{{ a }}}}|{{{{ b }}}}]{{%{m()} endmacro %}}{{{{ f({e()}) }}}}{{{{ f({e()}, b={self.any(0)}) | upper }}}}{{{{ f(b=1) }}}}",
            f"{{% set s = {e()} %}}{blank()}{{% set ns = namespace(v={self.any(0)}) %}}{{% for i in range(2) %}}{{% set s = 1 %}}{{% set ns.v = [ns.v, i] %}}{{% endfor %}}{blank()}{{{{ s }}}}{{{{ ns.v }}}}",
            f"{{% set b {self.pick('', '| trim', '| upper | trim')} %}}{body}{{%{m()} endset {p()}%}}{blank()}<{{{{ b }}}}>", f"{{# c {p() if False else ''}#}}{blank()}{{%{m()} filter upper {p()}%}}{body}{{% endfilter %}}",
            f"{{% macro g(c) %}}({{{{ caller(c) }}}}){{% endmacro %}}{{% call(v) g({e()}) %}}{{{{ v }}}}!{{% endcall %}}", f"{{% generation {p()}%}}{body}{{% endgeneration %}}{blank()}{{% raw %}}{{{{ x }}}}{{% endraw %}}")


def theirs(env, source, variables):
    try:
        return env.from_string(source).render(**variables)
    except Exception as e:  # whatever Python raises is a refusal
        return e


def ours(runner, folder, source, variables):
    path, messages = os.path.join(folder, "t.jinja"), os.path.join(folder, "m.json")
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(source)
    chat = {"messages": variables.get("messages", []), "chat_template_kwargs": {k: v for k, v in variables.items() if k not in OWN}}
    chat.update({k: variables[k] for k in ("tools", "documents") if k in variables})
    with open(messages, "w", encoding="utf-8") as f:
        json.dump(chat, f)
    flag = [] if variables.get("add_generation_prompt") else ["--no-generation-prompt"]
    done = subprocess.run([runner, "template", path, "--messages", messages, "--json", "-"] + flag, capture_output=True, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout)["text"], ""
    return None, done.stderr.decode("utf-8", "replace").strip()


OWN = ("messages", "tools", "documents", "add_generation_prompt")


def shown(text):
    return repr(text if len(text) < 400 else text[:400] + "…")


def compare(env, runner, folder, name, source, variables, counts):
    # What transformers always passes.
    wanted = theirs(env, source, {"messages": [], "tools": None, "documents": None, "add_generation_prompt": False, **variables})
    text, message = ours(runner, folder, source, variables)
    refused = isinstance(wanted, Exception)
    if text is None and "not implemented" in message:
        kind = "not implemented"
    elif (text is None) == refused and (refused or text == wanted):
        kind = "refused by both" if refused else "same text"
    else:
        kind = "different"
    counts[kind] = counts.get(kind, 0) + 1
    if kind == "different":
        print(f"DIFFERENT: {name}\n  template {shown(source)}\n  jinja    {shown(str(wanted)) if not refused else 'refuses: ' + type(wanted).__name__ + ' ' + str(wanted)[:300]}"
              f"\n  fewbit   {shown(text) if text is not None else message[:300]}")
    elif kind == "not implemented":
        print(f"not implemented: {message.split(': line ', 1)[-1]}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--count", type=int, default=300, help="random templates")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"), help="our programs")
    p.add_argument("--reference", default=os.path.join(ROOT, "..", "shared"), help="folder with goldens/chat_templates")
    args = p.parse_args()
    runner = os.path.join(os.path.abspath(args.bin), "runner")
    if not os.path.exists(runner):
        sys.exit(f"{runner}: absent; scripts/build --no-cuda makes it, or --bin says where it is")
    env, counts = environment(), {}
    with tempfile.TemporaryDirectory() as folder:
        goldens = sorted(glob.glob(os.path.join(args.reference, "goldens", "chat_templates", "*.cases.json")))
        if not goldens:
            print(f"{args.reference}: has no goldens/chat_templates; random templates only")
        for path in goldens:
            with open(path, encoding="utf-8") as f:
                cases = json.load(f)
            whole = path.replace(".cases.json", ".jinja")
            source = open(whole, encoding="utf-8", newline="").read() if os.path.exists(whole) else None
            for i, case in enumerate(cases):
                compare(env, runner, folder, f"{os.path.basename(path)}[{i}]", source or case["template"], case.get("variables", {}), counts)
        for i in range(args.count):
            source = Maker(random.Random(f"{args.seed}/{i}")).template()
            compare(env, runner, folder, f"random {args.seed}/{i}", source, VARIABLES, counts)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    return 1 if counts.get("different") else 0


if __name__ == "__main__":
    sys.exit(main())
