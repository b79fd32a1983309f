"""Mathematics with its working, and conversations that call tools: every figure in them is computed."""

import json
import math
from fractions import Fraction


def _linear(rng):
    a, x, b = rng.randint(2, 19), rng.randint(-30, 30), rng.randint(-50, 50)
    return (
        f"Solve {a}x {'+' if b >= 0 else '-'} {abs(b)} = {a * x + b} for x.\n\nSubtract {b} from both sides: "
        f"{a}x = {a * x}. Divide by {a}: x = {x}. Check: {a} * ({x}) + ({b}) = {a * x + b}."
    )


def _quadratic(rng):
    p, q = rng.randint(-12, 12), rng.randint(-12, 12)
    s, m = p + q, p * q
    return (
        f"Find the roots of $x^2 {-s:+d}x {m:+d} = 0$.\n\nTwo numbers with sum {s} and product {m} are {p} and {q}, "
        f"so that $x^2 {-s:+d}x {m:+d} = (x {-p:+d})(x {-q:+d})$. The roots are $x_1 = {p}$ and $x_2 = {q}$; the "
        f"discriminant is ${s * s} - 4 \\cdot ({m}) = {s * s - 4 * m}$, the square of {abs(p - q)}."
    )


def _gcd(rng):
    a, b = rng.randint(200, 9000), rng.randint(50, 900)
    lines, x, y = [], a, b
    while y:
        lines.append(f"{x} = {x // y} * {y} + {x % y}")
        x, y = y, x % y
    return (
        f"Compute gcd({a}, {b}) by Euclid's algorithm.\n\n"
        + "\n".join(lines)
        + f"\n\nThe last remainder that is not zero is {x}, so gcd({a}, {b}) = {x} and lcm({a}, {b}) = {a * b // x}."
    )


def _fractions(rng):
    a, b = Fraction(rng.randint(1, 19), rng.randint(2, 15)), Fraction(rng.randint(1, 19), rng.randint(2, 15))
    d = math.lcm(a.denominator, b.denominator)
    return (
        f"\\[ \\frac{{{a.numerator}}}{{{a.denominator}}} + \\frac{{{b.numerator}}}{{{b.denominator}}} ="
        f" \\frac{{{a.numerator * d // a.denominator}}}{{{d}}} + \\frac{{{b.numerator * d // b.denominator}}}{{{d}}}"
        f" = \\frac{{{(a + b).numerator}}}{{{(a + b).denominator}}} \\]\nTheir product is {a * b}, their difference"
        f" {a - b}."
    )


def _matrix(rng):
    m = [[rng.randint(-9, 9) for _ in range(2)] for _ in range(2)]
    n = [[rng.randint(-9, 9) for _ in range(2)] for _ in range(2)]
    p = [[sum(m[i][k] * n[k][j] for k in range(2)) for j in range(2)] for i in range(2)]
    tex = lambda w: "\\begin{pmatrix} " + " \\\\ ".join(" & ".join(map(str, r)) for r in w) + " \\end{pmatrix}"
    det = lambda w: w[0][0] * w[1][1] - w[0][1] * w[1][0]
    return (
        f"Let $A = {tex(m)}$ and $B = {tex(n)}$. Then $AB = {tex(p)}$, and the determinants agree: $\\det A ="
        f" {det(m)}$, $\\det B = {det(n)}$, $\\det AB = {det(p)} = {det(m)} \\cdot {det(n)}$."
    )


def _binomial(rng):
    n, k = rng.randint(5, 30), rng.randint(2, 5)
    who = rng.choice(["delegates", "cards", "books", "stations", "songs", "players"])
    return (
        f"In how many ways can {k} of {n} {who} be chosen if their order does not matter?\n\nThe first can be chosen"
        f" in {n} ways, and so on down to {n - k + 1}; every choice has then been counted {k}! = {math.factorial(k)}"
        f" times. C({n}, {k}) = {math.perm(n, k)} / {math.factorial(k)} = {math.comb(n, k)}."
    )


def _derivative(rng):
    c = [rng.randint(-9, 9) or 1 for _ in range(4)]
    x = rng.randint(-4, 4)
    d = 3 * c[3] * x * x + 2 * c[2] * x + c[1]
    return (
        f"For $f(x) = {c[3]}x^3 {c[2]:+d}x^2 {c[1]:+d}x {c[0]:+d}$ the derivative is $f'(x) = {3 * c[3]}x^2"
        f" {2 * c[2]:+d}x {c[1]:+d}$, so that $f'({x}) = {d}$. The tangent at that point has the slope"
        f" {d}{' and is horizontal' if d == 0 else ', rising' if d > 0 else ', falling'}."
    )


def _series(rng):
    a, d, n = rng.randint(-20, 20), rng.randint(2, 15), rng.randint(8, 60)
    last = a + (n - 1) * d
    return (
        f"The sequence {a}, {a + d}, {a + 2 * d}, … has the common difference {d}. Its {n}th term is {a} + {n - 1} ·"
        f" {d} = {last}, and the sum of the first {n} terms is {n}({a} + {last})/2 ="
        f" {n * (a + last) // 2 if n * (a + last) % 2 == 0 else n * (a + last) / 2}."
    )


def _modular(rng):
    b, e, m = rng.randint(2, 40), rng.randint(5, 40), rng.randint(7, 97)
    steps, value, power = [], 1, b % m
    k = e
    while k:
        if k & 1:
            value = value * power % m
        steps.append(f"bit {k & 1}: power {power}, product {value}")
        power, k = power * power % m, k >> 1
    return (
        f"Compute {b}^{e} mod {m} by squaring. In binary {e} is {e:b}.\n"
        + "\n".join(steps)
        + f"\nSo {b}^{e} = {pow(b, e, m)} (mod {m})."
    )


def _trade(rng):
    n, price, off = rng.randint(3, 60), rng.randint(2, 90), rng.choice([5, 10, 12, 15, 20, 25])
    item = rng.choice(
        [
            "boxes of nails",
            "train tickets",
            "sacks of flour",
            "notebooks",
            "lamps",
            "metres of rope",
            "litres of paint",
        ]
    )
    total = n * price
    return (
        f"Someone buys {n} {item} at {price} euros each and is given {off} % off. What is to be paid?\n\nWithout the"
        f" reduction it would be {n} × {price} = {total} euros. {off} % of that is {total * off / 100:.2f} euros,"
        f" which leaves {total * (100 - off) / 100:.2f} euros."
    )


def _columns(rng):
    a, b = rng.randint(1000, 99999), rng.randint(11, 999)
    rows = "\n".join(
        f"  {a} x {int(d) * 10 ** i:>5} = {a * int(d) * 10 ** i}" for i, d in enumerate(reversed(str(b)))
    )
    return (
        f"{a} x {b}, digit by digit:\n{rows}\n  sum: {a * b}\nand {a * b} / {a} = {b} again. Remainder of {a} by {b}:"
        f" {a % b}."
    )


EXERCISES = [
    _linear,
    _quadratic,
    _gcd,
    _fractions,
    _matrix,
    _binomial,
    _derivative,
    _series,
    _modular,
    _trade,
    _columns,
]


def exercise(rng):
    return rng.choice(EXERCISES)(rng)


TOWNS = [
    "Lisbon",
    "Graz",
    "Tampere",
    "Oaxaca",
    "Hanoi",
    "Leeds",
    "Kraków",
    "Osaka",
    "Nairobi",
    "Quito",
    "Bergen",
    "Izmir",
]


def _weather(rng):
    town, day, t, rain = (
        rng.choice(TOWNS),
        rng.choice(["today", "tomorrow", "on Friday"]),
        rng.randint(-8, 36),
        rng.randint(0, 95),
    )
    ask = rng.choice(
        [
            "What will the weather be in {} {}?",
            "Do I need an umbrella in {} {}?",
            "I am travelling to {}; how warm is it {}?",
        ]
    )
    reply = f"In {town} it will be {t} °C {day}, with a {rain} % chance of rain." + (
        " Take an umbrella." if rain > 50 else ""
    )
    return (
        ask.format(town, day),
        "get_forecast",
        {"city": town, "day": day},
        {"temperature_c": t, "rain_percent": rain},
        reply,
        f"The forecast depends on the place and the day, so I need get_forecast for {town}.",
    )


def _convert(rng):
    amount, a, b = rng.randint(3, 900), *rng.sample(["EUR", "USD", "GBP", "JPY", "CHF", "INR"], 2)
    rate = round(rng.uniform(0.2, 160), 4)
    return (
        f"How much is {amount} {a} in {b}?",
        "exchange",
        {"amount": amount, "from": a, "to": b},
        {"rate": rate, "result": round(amount * rate, 2)},
        f"{amount} {a} are {amount * rate:.2f} {b}, at a rate of {rate}.",
        "I do not know the rate by heart. The tool exchange returns it.",
    )


def _files(rng):
    path = rng.choice(["/srv/app/logs", "src/parser", "docs", "/home/ana/photos", "build/reports", "data/2031"])
    names = rng.sample(
        [
            "index.html",
            "readme.md",
            "run-17.log",
            "main.rs",
            "notes.txt",
            "table.csv",
            "lexer.py",
            "error.log",
            "map.svg",
        ],
        rng.randint(2, 5),
    )
    sizes = {n: rng.randint(80, 900000) for n in names}
    big = max(sizes, key=sizes.get)
    return (
        f"Which is the largest file in {path}?",
        "list_directory",
        {"path": path, "recursive": rng.random() < 0.5},
        [{"name": n, "bytes": s} for n, s in sizes.items()],
        f"`{big}`, with {sizes[big]:,} bytes.",
        f"List {path} first, then compare the sizes.",
    )


def _query(rng):
    table, column = rng.choice(
        [("orders", "total"), ("visits", "duration_s"), ("parcels", "weight_kg"), ("loans", "days")]
    )
    limit, n = rng.randint(10, 500), rng.randint(0, 4000)
    sql = f"SELECT COUNT(*) FROM {table} WHERE {column} > {limit}"
    return (
        f"How many {table} have more than {limit} in {column}?",
        "run_sql",
        {"query": sql},
        {"rows": [[n]]},
        f"{n} {table} have a {column} above {limit}.",
        f"A count with a condition: {sql}.",
    )


def _calculate(rng):
    a, b, c = rng.randint(100, 9999), rng.randint(2, 99), rng.randint(1, 999)
    return (
        f"What is {a} times {b} minus {c}?",
        "calculate",
        {"expression": f"{a}*{b}-{c}"},
        a * b - c,
        f"{a} × {b} − {c} = {a * b - c}.",
        f"{a} × {b} is {a * b}; take away {c}. I check it with the tool.",
    )


def _calendar(rng):
    who, hour, minutes = (
        rng.choice(["Ana", "Mr. Osei", "the dentist", "Li Wei", "the plumber", "Fatima"]),
        rng.randint(8, 18),
        rng.choice([15, 30, 45, 60, 90]),
    )
    ok = rng.random() < 0.7
    args = {
        "title": f"Meeting with {who}",
        "start": f"2031-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T{hour:02}:00:00",
        "minutes": minutes,
    }
    result = (
        {"id": f"ev_{rng.randint(1000, 9999)}", "status": "created"}
        if ok
        else {"error": "conflict", "with": "Weekly review"}
    )
    reply = (
        f"Done: {minutes} minutes with {who} at {hour}:00."
        if ok
        else "That time is taken by the weekly review. Shall I look for another one?"
    )
    return (
        f"Please put {minutes} minutes with {who} into my calendar at {hour}.",
        "create_event",
        args,
        result,
        reply,
        "The start must be in ISO format; the length is in minutes.",
    )


CALLS = [_weather, _convert, _files, _query, _calculate, _calendar]


def conversation(rng):
    """One conversation in one of four notations that models are trained on."""
    style, turns = rng.randrange(4), [rng.choice(CALLS)(rng) for _ in range(rng.randint(1, 3))]
    dump = lambda v: json.dumps(v, ensure_ascii=False)
    out = []
    if style == 3:
        messages = []
        for ask, name, args, result, reply, _ in turns:
            messages += [
                {"role": "user", "content": ask},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"type": "function", "function": {"name": name, "arguments": dump(args)}}],
                },
                {"role": "tool", "name": name, "content": dump(result)},
                {"role": "assistant", "content": reply},
            ]
        return json.dumps({"messages": messages}, ensure_ascii=False, indent=rng.choice([None, 1, 2]))
    if style == 0:
        tools = [
            {"name": n, "parameters": {k: {"type": type(v).__name__} for k, v in a.items()}}
            for _, n, a, _, _, _ in turns
        ]
        out.append(
            "<|im_start|>system\nYou may call these functions:\n<tools>\n"
            + "\n".join(map(dump, tools))
            + "\n</tools><|im_end|>"
        )
    for ask, name, args, result, reply, thought in turns:
        if style == 0:
            out += [
                f"<|im_start|>user\n{ask}<|im_end|>",
                f"<|im_start|>assistant\n<think>\n{thought}\n</think>\n\n<tool_call>\n"
                + dump({"name": name, "arguments": args})
                + "\n</tool_call><|im_end|>",
                f"<|im_start|>user\n<tool_response>\n{dump(result)}\n</tool_response><|im_end|>",
                f"<|im_start|>assistant\n{reply}<|im_end|>",
            ]
        elif style == 1:
            out += [
                f"User: {ask}",
                f"Thought: {thought}",
                f"Action: {name}",
                f"Action Input: {dump(args)}",
                f"Observation: {dump(result)}",
                f"Answer: {reply}",
            ]
        else:
            out += [
                f"[INST] {ask} [/INST]",
                f"[TOOL_CALLS] [{dump({'name': name, 'arguments': args})}]",
                f"[TOOL_RESULTS] {dump(result)} [/TOOL_RESULTS]",
                reply,
            ]
    return "\n".join(out)
