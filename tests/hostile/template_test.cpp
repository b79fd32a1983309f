// Chat templates: loops, texts and nesting without end, arithmetic at the ends of its range, syntax that is none.
#include <gtest/gtest.h>

#include "tests/hostile/contained.h"
#include "tests/hostile/readers.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

constexpr size_t kMany = 300'000;

std::string loops(int depth, const std::string& inside) {
  std::string s;
  for (int i = 0; i < depth; ++i) s += "{% for a" + std::to_string(i) + " in range(99999) %}";
  return s + inside + repeated("{% endfor %}", 12 * static_cast<size_t>(depth));
}

std::vector<Hostile> without_end() {
  return {
      {"loops in one another", loops(4, "")},
      {"loops that write", loops(3, "xxxxxxxxxxxxxxxx")},
      {"a range of 10^18", "{% for i in range(10**18) %}{% endfor %}", "range"},
      {"a range over all of 64 bits", "{{ range(-9223372036854775807, 9223372036854775807)|length }}", "range"},
      {"a range without a step", "{{ range(1, 2, 0)|list }}"},
      {"a text that doubles",
       "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"},
      {"a list that doubles",
       "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"},
      {"lists that hold each other twice",
       "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}"},
      {"objects that hold each other twice",
       "{% set ns = namespace(s=1) %}{% for i in range(99) %}{% set ns.s = {'a': ns.s, 'b': ns.s} %}{% endfor %}{{ "
       "ns.s|tojson }}"},
      {"lists that are compared",
       "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s == "
       "ns.s + [] }}",
       "", true},
      {"tuples that are hashed",
       "{% set ns = namespace(s=(1,2)) %}{% for i in range(60) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}{{ {ns.s: 1} "
       "}}"},
      {"a list that is sorted and holds itself often",
       "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ [ns.s, "
       "ns.s, ns.s]|sort }}"},
      {"a text times a billion", "{{ 'x' * 1000000000 }}"},
      {"a list times a billion", "{{ [1] * 1000000000 }}"},
      {"a text times all of 64 bits", "{{ 'xx' * 9223372036854775807 }}"},
      {"a text times less than nothing", "{{ 'x' * -9223372036854775807 }}", "", true},
      {"a text centred in a billion", "{{ 'x'.center(1000000000) }}"},
      {"a filter that centres", "{{ 'x'|center(9223372036854775807) }}"},
      {"a number formatted a billion wide", "{{ '%1000000000d' % 7 }}"},
      {"a number formatted a billion exact", "{{ '%.1000000000f' % 0.1 }}"},
      {"a text cut at a billion", "{{ '%.1000000000s' % 'x' }}", "", true},
      {"an indent of a billion", "{{ 'a\nb'|indent(1000000000) }}"},
      {"JSON with an indent of a billion", "{{ [1,[2]]|tojson(indent=1000000000) }}"},
      {"a text replaced by a long one", "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}"},
      {"nothing replaced by a long text", "{{ ('a' * 1000000).replace('', 'b' * 1000) }}"},
      {"a list joined by a long text", "{{ ([1] * 100000)|join('b' * 1000000) }}"},
      {"a text split into letters", "{{ ('a ' * 6000000).split() }}"},
      {"a text as a list of letters", "{{ ('a' * 12000000)|list }}"},
      {"letters that are sorted", "{{ ('ba' * 3000000)|sort|join }}"},
      {"groups of letters", "{{ ('ab' * 3000000)|batch(1)|list|length }}"},
      {"slices of nothing", "{{ [1]|slice(1000000000)|list }}"},
      {"batches that are filled", "{{ [1]|batch(1000000000, 'x')|list }}"},
      {"a macro that calls itself", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deep"},
      {"a macro that calls itself twice",
       "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}"},
      {"a loop that calls itself", "{% for i in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}", "deep"},
      {"a caller that calls its macro",
       "{% macro m() %}{{ caller() }}{% endmacro %}{% macro r() %}{% call m() %}{{ r() }}{% endcall %}{% endmacro %}{{ "
       "r() }}",
       "deep"},
      {"a search in a long text for a long one", "{{ ('a' * 1000000) in ('a' * 999999 ~ 'b') * 10 }}", "", true},
      {"many searches", loops(1, "{{ 'b' in 'a' * 1000000 }}")},
      {"many texts in capitals", loops(1, "{% set x = ('a' * 100000)|upper %}")},
      {"many words", "{{ ('a ' * 5000000)|wordcount }}", "", true},
      {"wrapped words", "{{ ('a ' * 5000000)|wordwrap(2) }}", "", true},
  };
}

std::vector<Hostile> at_the_ends() {
  return {
      {"the least number divided by -1", "{{ (-9223372036854775807 - 1) // -1 }}", "64 bits"},
      {"the least number negated", "{{ -(-9223372036854775807 - 1) }}", "64 bits"},
      {"the least number's size", "{{ (-9223372036854775807 - 1)|abs }}"},
      {"a sum beyond 64 bits", "{{ 9223372036854775807 + 1 }}", "64 bits"},
      {"a product beyond 64 bits", "{{ 4294967296 * 4294967296 }}", "64 bits"},
      {"a power beyond 64 bits", "{{ 2 ** 64 }}", "64 bits"},
      {"a power of a power", "{{ 9 ** 9 ** 9 ** 9 }}", "64 bits"},
      {"a division by zero", "{{ 1 / 0 }}", "zero"},
      {"a rest of zero", "{{ 1 % 0 }}", "zero"},
      {"a division of floats by zero", "{{ 1.5 // 0.0 }}", "zero"},
      {"a float as a whole number", "{{ 1e300|int }}", "64 bits"},
      {"not a number as a whole one", "{{ ('nan'|float)|int }}", "", true},
      {"a literal beyond 64 bits", "{{ 99999999999999999999 }}", "64 bits"},
      {"a rounding to a billion places", "{{ 1.5|round(1000000000) }}", "", true},
      {"a rounding to the least number of places", "{{ 1.5|round(-9223372036854775807 - 1) }}", "", true},
      {"the least number's rest by -1", "{{ (-9223372036854775807 - 1) % -1 }}", "", true},
      {"a slice with the least step", "{{ 'abc'[::-9223372036854775807 - 1] }}", "", true},
      {"a slice with the largest step", "{{ 'abc'[::9223372036854775807] }}", "", true},
      {"a slice from the least to the largest", "{{ 'abc'[-9223372036854775807 - 1:9223372036854775807] }}", "", true},
      {"a slice backwards from beyond", "{{ 'abc'[9223372036854775807:-9223372036854775807 - 1:-1] }}", "", true},
      {"a slice of a list backwards",
       "{{ [1,2,3][-9223372036854775807 - 1:9223372036854775807:-9223372036854775807 - 1] }}", "", true},
      {"a slice without a step", "{{ 'abc'[::0] }}"},
      {"a slice of letters of two bytes", "{{ 'h\u00e4\u00e4'[-2:9223372036854775807] }}", "", true},
      {"an index beyond", "{{ [1][9223372036854775807] }}", "", true},
      {"an index before", "{{ [1][-9223372036854775807 - 1] }}", "", true},
      {"a search from beyond", "{{ 'abc'.find('b', 9223372036854775807, -9223372036854775807 - 1) }}", "", true},
      {"a truncation to less than nothing", "{{ 'abcdef'|truncate(-9223372036854775807 - 1) }}", "", true},
      {"a range at the ends", "{{ range(9223372036854775806, 9223372036854775807)|list }}", "", true},
      {"a range down at the ends", "{{ range(-9223372036854775807, -9223372036854775807 - 1, -1)|list }}", "", true},
      {"the sum of a list beyond 64 bits", "{{ [9223372036854775807, 1]|sum }}", "64 bits"},
      {"a size of bytes at the end", "{{ 9223372036854775807|filesizeformat }}", "", true},
      {"a conversion to base 99", "{{ '7'|int(0, 99) }}", "", true},
  };
}

std::vector<Hostile> no_template() {
  return {
      {"a million brackets", "{{ " + repeated("(", kMany) + repeated(")", kMany) + " }}", "deep"},
      {"a million list brackets", "{{ " + repeated("[", kMany) + repeated("]", kMany) + " }}", "deep"},
      {"a million braces", "{{ " + repeated("{", kMany), ""},
      {"a million signs", "{{ " + repeated("-", kMany) + "1 }}", "deep"},
      {"a million negations", "{{ " + repeated("not ", kMany) + "1 }}", "deep"},
      {"a million dots", "{{ a" + repeated(".a", kMany) + " }}"},
      {"a million filters", "{{ a" + repeated("|trim", kMany) + " }}"},
      {"a million tests", "{{ a" + repeated(" is none", kMany) + " }}"},
      {"a million calls", "{{ a" + repeated("()", kMany) + " }}"},
      {"a million subscripts", "{{ a" + repeated("[0]", kMany) + " }}"},
      {"a million powers", "{{ 1" + repeated("**1", kMany) + " }}", "", true},
      {"a million conditions in a row", "{{ 1" + repeated(" if 1 else 1", kMany) + " }}"},
      {"a million conditions without else", "{{ 1" + repeated(" if 1", kMany) + " }}", "", true},
      {"as many conditions without else as a file may have", "{{ 1" + repeated(" if 1", 200'000) + " }}", "deep"},
      {"a million sums", "{{ 1" + repeated("+1", kMany) + " }}", "", true},
      {"a million comparisons", "{{ 1" + repeated("<1", kMany) + " }}", "", true},
      {"a million ifs", repeated("{% if 1 %}", kMany), "deep"},
      {"a million elifs", "{% if 0 %}" + repeated("{% elif 0 %}", kMany) + "{% endif %}", "", true},
      {"a million loops", repeated("{% for a in b %}", kMany), "deep"},
      {"a million macros", repeated("{% macro m() %}", kMany), "deep"},
      {"a million assignments", repeated("{% set a = 1 %}", kMany), "", true},
      {"a million names",
       [] {
         std::string s;
         for (int i = 0; i < 40'000; ++i) s += "{{a" + std::to_string(i) + "}}";
         return s;
       }(),
       "names"},
      {"a million names that are set",
       [] {
         std::string s;
         for (int i = 0; i < 40'000; ++i) s += "{%set a" + std::to_string(i) + "=1%}";
         return s;
       }(),
       "names"},
      {"targets in one another", "{% set " + repeated("(", kMany) + "a" + repeated(")", kMany) + " = 1 %}", "deep"},
      {"a template of two megabytes", std::string(2 << 20, 'x'), "bytes"},
      {"a tag that is not closed", "{% if"},
      {"a block that is not closed", "{% if 1 %}"},
      {"a comment that is not closed", "{# "},
      {"a raw block that is not closed", "{% raw %}{{"},
      {"a million raw blocks that are not closed", repeated("{% raw %}", kMany)},
      {"a million comments that are not closed", repeated("{#", kMany)},
      {"a string that is not closed", "{{ 'a"},
      {"a string that ends with a backslash", "{{ 'a\\"},
      {"an end of what did not begin", "{% endif %}"},
      {"a tag that there is not", "{% fancy %}", "fancy"},
      {"a filter that there is not", "{{ 1|fancy }}", "fancy"},
      {"a filter with escape sequences", "{{ 1|\x1b[2J }}"},
      {"a tag that opens files", "{% include '/etc/passwd' %}", "include"},
      {"an import", "{% import 'os' as os %}", "import"},
      {"Python's insides", "{{ ''.__class__.__mro__[1].__subclasses__() }}"},
      {"Python's globals", "{{ cycler.__init__.__globals__ }}"},
      {"a macro's insides", "{% macro m() %}{% endmacro %}{{ m.__init__ }}", "", true},
      {"bytes that are no UTF-8", "{{ '\xff' }}", "UTF-8"},
      {"half of a surrogate pair", R"({{ '\ud800' }})"},
      {"a character beyond Unicode", R"({{ '\U00110000' }})"},
      {"zero bytes", std::string(1000, '\0') + "{{ 1 + }}"},
      {"an exception with escape sequences", "{{ raise_exception('\x1b]0;owned\x07') }}", "\\x1b"},
      {"an exception of megabytes", "{{ raise_exception('x' * 10000000) }}", "refuses"},
      {"an exception of many lines", "{{ raise_exception('x\n' * 1000) }}", "refuses"},
      {"a name that is not there", "{{ nothing.at.all }}", "nothing"},
      {"a text and a number", "{{ 'a' + 1 }}", "concatenate"},
  };
}

TEST(HostileTemplate, WithoutEnd) {
  const TempDir dir;
  expect_refused(without_end(), [&](const std::string& bytes) { read_template_bytes(bytes, dir.path()); });
}

TEST(HostileTemplate, AtTheEndsOfArithmetic) {
  const TempDir dir;
  expect_refused(at_the_ends(), [&](const std::string& bytes) { read_template_bytes(bytes, dir.path()); });
}

TEST(HostileTemplate, IsNone) {
  const TempDir dir;
  expect_refused(no_template(), [&](const std::string& bytes) { read_template_bytes(bytes, dir.path()); });
}

}  // namespace
}  // namespace fewbit::test
