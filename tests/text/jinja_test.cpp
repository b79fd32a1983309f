// Jinja as transformers has it: what the goldens do not show, what is refused, and templates that mean harm.
#include "src/text/jinja/jinja.h"

#include <gtest/gtest.h>

#include "tests/text/tiny_tokenizer.h"

namespace fewbit::test {
namespace {

std::string rendered(const std::string& source, const std::string& variables = "{}") {
  return jinja::Template::parse(source, "test").render(variables);
}

struct Case {
  const char *source, *expected;
};

// Expected values are Jinja's, by scripts/interop/templates's environment.
TEST(JinjaValues, OperatorsAndNumbers) {
  for (const Case& c : {
           Case{"{{ '1' + 2 ~ 3 }}", "123"},  // ~ binds tighter than +
           Case{"{{ 2 ** 3 ** 2 }}", "64"},
           Case{"{{ -2 ** 2 }}", "4"},
           Case{"{{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 7 % -3 }}", "-4.0 0.5 -2"},
           Case{"{{ 1 < 2 < 2 }} {{ 3 > 2 >= 2 }}", "False True"},
           Case{"{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ -0.0 }}",
                "1e+16 1000000000000000.0 0.0001 1e-05 -0.0"},
           Case{"{{ 9223372036854775807 == 9223372036854775808.0 }}", "False"},
           Case{"{{ 0x1F }} {{ 0b101 }} {{ 0o17 }}", "31 5 15"},
           Case{"{{ true + true }} {{ 5 is number }} {{ true is integer }}", "2 True False"},
           Case{"{{ 2.5 | round }} {{ 3.5 | round }} {{ 1.005 | round(2) }}", "2.0 4.0 1.0"},
       })
    EXPECT_EQ(rendered(c.source), c.expected) << c.source;
}

TEST(JinjaValues, TextsByCodePoints) {
  for (const Case& c : {
           Case{"{{ 'añ数👍'[2] }}{{ 'añ数👍'[-1:] }}{{ 'añ数👍'[::-2] }}", "数👍👍ñ"},
           Case{"{{ ['\\'', '\"', '\\'\"', 'é', '\\x00', '\\u200b'] }}", R"(["'", '"', '\'"', 'é', '\x00', '\u200b'])"},
           Case{"{{ 'straße'.upper() }} {{ 'ΑΣ'.lower() }} {{ \"it's\".title() }} {{ \"it's\" | title }}",
                "STRASSE ας It'S It's"},
           Case{"{{ 'aXbXc'.rsplit('X', 1) }} {{ ' a  b '.split(none, 1) }}", "['aXb', 'c'] ['a', 'b ']"},
           Case{"{{ 'aaa'.replace('', '-') }} {{ 'aaa'.replace('a', 'b', 2) }}", "-a-a-a- bba"},
           Case{"{{ 'abc'.find('c', 1) }} {{ 'abc'.startswith('b', 1) }} {{ 'abab'.rfind('ab') }}", "2 True 2"},
           Case{"{{ ('<b>' | safe) + '<i>' }} {{ ('<b>' | safe) ~ '<i>' }}", "<b>&lt;i&gt; <b><i>"},
           Case{"{{ '%05.1f|%-4s|%+d|%x' % (3.14159, 'a', 5, 255) }}", "003.1|a   |+5|ff"},
       })
    EXPECT_EQ(rendered(c.source), c.expected) << c.source;
}

TEST(JinjaValues, AttributesAndItems) {
  const std::string v = R"({"m": {"items": 1, "get": 2, "k": {"n": 3}}, "l": [1, 2]})";
  EXPECT_EQ(rendered("{{ m['items'] }} {{ m.k.n }} {{ m.nothing is defined }} {{ l[5] is defined }}", v),
            "1 3 False False");
  EXPECT_EQ(rendered("{{ m.get('k').n }} {{ m.get('z', 4) }}", v), "3 4") << "a method comes before a key";
  EXPECT_EQ(rendered("{{ l.append is defined }} {{ m.update is defined }}", v), "False False")
      << "the sandbox hides them";
  EXPECT_EQ(rendered("{{ m.keys() }} {{ m.k.items() }}", v), "dict_keys(['items', 'get', 'k']) dict_items([('n', 3)])");
}

TEST(JinjaScopes, WhatALoopAMacroAndABlockSee) {
  for (const Case& c : {
           Case{"{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "12131"},
           Case{"{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}{% set x = 2 %}{{ f() }}", "12"},
           Case{"{% macro f(a, b=a ~ '!') %}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, z=4) }}{{ f(5) "
                "}}",
                "2(3,){'z': 4}5!(){}"},
           Case{"{% set ns = namespace(n=0) %}{% for x in range(4) if x != ns.n %}{% set ns.n = x + 1 %}{{ x }}{% "
                "endfor %}",
                "13"},
           Case{"{% for x in [1] %}{% break %}{% else %}none{% endfor %}", "none"},
           Case{"{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "3"},
           Case{"{% set g = [1, 2, 3] | map('string') %}{{ g | first }}{{ g | list }}{{ g | list }}", "1['2', '3'][]"},
       })
    EXPECT_EQ(rendered(c.source), c.expected) << c.source;
  EXPECT_EQ(rendered("{% for i in [1] %}[{{ x }}]{% endfor %}{% set x = 2 %}{{ x }}", R"({"x": 1})"), "[]2")
      << "a name that is only set is not read from the variables";
  EXPECT_EQ(rendered("{% if x == 3 %}{% set x = 2 %}{% endif %}{{ x }}", R"({"x": 1})"), "1");
}

TEST(JinjaWhitespace, MarksAndNewlines) {
  for (const Case& c : {
           Case{"{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}\n", "x\n"},
           Case{"a\n  {%+ if true %}b{% endif +%}\nc", "a\n  b\nc"},
           Case{"a {#- gone -#} b", "ab"},
           Case{"a\r\nb\rc\n", "a\nb\nc"},
           Case{"{%- raw -%} {{ x }} {%- endraw -%} z", "{{ x }}z"},
           Case{"{{ '\\u00e9' }}{{ '\\é' }}{{ \"a\\\nb\" }}", "é\\xe9ab"},
       })
    EXPECT_EQ(rendered(c.source), c.expected) << c.source;
}

// Of an error: its kind and a part of its words.
void refused(const std::string& source, const std::string& word, ErrorKind kind, const std::string& variables = "{}") {
  std::string what;
  EXPECT_EQ(error_of([&] { rendered(source, variables); }, &what), kind) << source << ": " << what;
  EXPECT_NE(what.find(word), std::string::npos) << source << ": " << what;
  EXPECT_EQ(what.find('\n'), std::string::npos) << what;
}

TEST(JinjaRefusals, NotImplementedByNameAndLine) {
  for (const Case& c :
       {Case{"a\n{% block b %}{% endblock %}", "line 2: the tag \"block\""},
        Case{"{% include 'x' %}", "the tag \"include\""}, Case{"{{ x | urlize }}", "the filter \"urlize\""},
        Case{"{{ 'a'.encode() }}", "the method \"encode\""}, Case{"{{ cycler(1) }}", "the function \"cycler\""},
        Case{"{{ [1] | map('string') }}", "printing a generator"},
        Case{"{{ 9223372036854775807 + 1 }}", "more than 64 bits"},
        Case{"{{ 9223372036854775808 }}", "more than 64 bits"},
        Case{"{{ (-9223372036854775807 - 1) // -1 }}", "more than 64 bits"}, Case{"{{ '\\N{BULLET}' }}", "\\N"},
        Case{"{{ '\\ud800' }}", "surrogate"}, Case{"{{ (-8) ** 0.5 }}", "complex"}})
    refused(c.source, c.expected, ErrorKind::unsupported);
}

TEST(JinjaRefusals, WhatPythonAndJinjaRefuse) {
  for (const Case& c : {Case{"a\n{{ raise_exception('no\ntools') }}", "line 2: the chat template refuses: no tools"},
                        Case{"{{ x.y }}", "'x' is undefined"},
                        Case{"{{ x + 1 }}", "'x' is undefined"},
                        Case{"{{ 'a' + 1 }}", "concatenate"},
                        Case{"{{ {}.a.b }}", "no attribute 'a'"},
                        Case{"{{ [].append(1) }}", "'append'"},
                        Case{"{{ ''.__class__ }}", "unsafe"},
                        Case{"{{ 1 / 0 }}", "division by zero"},
                        Case{"{{ [1] | sort('x', 'y', 'z', 1) }}", "arguments at most"},
                        Case{"{{ [1] | join(x=1) }}", "no argument \"x\""},
                        Case{"{% for x in 3 %}{% endfor %}", "not iterable"},
                        Case{"{{ x | nonsense }}", "no filter"},
                        Case{"{{ x is nonsense }}", "no test"},
                        Case{"{% do x %}", "no tag \"do\""},
                        Case{"{% if x %}", "{% endif %} is missing"},
                        Case{"{{ 'x }}", "not closed"},
                        Case{"{% break %}", "outside of a loop"},
                        Case{"{{ {[]: 1} }}", "unhashable"},
                        Case{"{{ [3, 'a'] | sort }}", "not supported"},
                        Case{"{% raw %}", "endraw"},
                        Case{"{% macro f() %}{% endmacro %}{{ f(1) }}", "not more than 0"},
                        Case{"{{ 1[::0] }}", "cannot be sliced"},
                        Case{"{% set ns = namespace(_a=1) %}", "underscore"},
                        Case{"{{ '%d' % 'x' }}", "whole number"},
                        Case{"\xff", "UTF-8"}})
    refused(c.source, c.expected, ErrorKind::checkpoint);
  refused("{{ x }}", "64 bits", ErrorKind::unsupported, R"({"x": 18446744073709551615})");
  refused("{{ x }}", "nested", ErrorKind::checkpoint,
          "{\"x\": " + std::string(100000, '[') + std::string(100000, ']') + "}");
}

std::string times(const std::string& s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += s;
  return out;
}

TEST(JinjaLimits, NestingEndsWithAMessage) {
  const int n = 100000;
  for (const std::string& source :
       {"{{ " + times("(", n) + "1" + times(")", n) + " }}", "{{ " + times("[", n) + times("]", n) + " }}",
        times("{% if true %}", n / 2), "{{ " + times("not ", n) + "1 }}", "{{ " + times("-", n) + "1 }}"})
    refused(source, "nested more than", ErrorKind::checkpoint);
  refused("{{ x" + times(".a", n) + " }}", "in a row", ErrorKind::checkpoint);
  refused("{{ 1" + times("|string", n) + " }}", "in a row", ErrorKind::checkpoint);
  refused(times(" ", 2 << 20), "bytes", ErrorKind::checkpoint);
  EXPECT_EQ(rendered("{{ 0" + times(" + 1", n) + " }}"), "100000") << "a long sum is not deep";
}

TEST(JinjaLimits, HostileTemplatesEndWithAMessage) {
  const std::string deep =
      "{% set ns = namespace(s=[1]) %}{% for i in range(100000) %}{% set ns.s = [ns.s] %}{% endfor %}";
  const std::string twice =
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}";
  const std::string large = "{% set t = 'a' * 5000000 %}";
  for (
      const auto& [source, word] : std::vector<std::pair<std::string, const char*>>{
          {"{% for i in range(10**18) %}x{% endfor %}", "range"},
          {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "memory"},
          {"{% set r = range(100000) | list %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}", "steps"},
          {twice, "text of more than"},
          {"{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "memory"},
          {"{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
           "text of more than"},
          {deep + "{{ ns.s }}", "nested"},
          {deep + "{{ ns.s | tojson }}", "nested"},
          {deep + "{{ ns.s == [ns.s] }}", "nested"},
          {"{{ 'x' * 10**18 }}", "text of more than"},
          {"{{ [0] * 10**18 }}", "memory"},
          {"{{ 'a' | center(10**15) }}{{ 'a' | indent(10**15) }}", "text of more than"},
          {"{{ '%1000000000d' % 3 }}", "text of more than"},
          {"{{ [[1]] | tojson(indent=10**9) }}", "text of more than"},
          {"{{ ['a'] * 100000 | join('b' * 1000000) }}", ""},
          {"{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}", "text of more than"},
          {"{{ [1] | batch(10**15, 0) | list }}{{ [1] | slice(10**15) | list }}", "memory"},
          {"{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "nested"},
          {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nested"},
          {large + "{% for i in range(100000) %}{% if 'b' in t %}{% endif %}{% endfor %}", "steps"},
          {large + "{% for i in range(100000) %}{{ t }}{% endfor %}", "text of more than"},
          {large + "{% for i in range(100000) %}{% set u = t.upper() %}{% endfor %}", ""},
          {"{{ 10 ** 1000000000 }}", "64 bits"},
      }) {
    std::string what;
    error_of([&, &source = source] { rendered(source); }, &what);
    EXPECT_NE(what.find(word), std::string::npos) << source << ": " << what;
  }
  const std::string v = R"({"l": [1, 2, 3]})";
  EXPECT_EQ(rendered("{{ l[5:] }}{{ l[-9:2] }}{{ l[::-9223372036854775807] }}{{ 'abc'[10**18:] }}", v), "[][1, 2][3]");
  EXPECT_EQ(rendered(large + "{{ t.find('a' * 2500000 + 'b') }}"), "-1") << "searching is linear";
}

TEST(JinjaLimits, LongChatsPass) {
  // Every message looks at all that follow, as templates of several families do.
  std::string messages;
  for (int i = 0; i < 1000; ++i)
    messages += std::string(i ? "," : "") + R"({"role": "user", "content": "some words of a message, not very long"})";
  const std::string out = rendered(
      "{% for m in messages %}{% set ns = namespace(n=0) %}{% for f in messages[loop.index:] %}{% if f.role == 'user' "
      "%}"
      "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ m.content | trim ~ ns.n }}{% endfor %}",
      "{\"messages\": [" + messages + "]}");
  EXPECT_TRUE(out.ends_with("long0")) << out.substr(out.size() - 20);
}

}  // namespace
}  // namespace fewbit::test
