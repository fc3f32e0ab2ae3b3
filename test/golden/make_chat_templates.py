#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Writes test/golden/chat_templates/cases.json: templates, conversations and what transformers renders of them, or that
# it refuses them. Three parts: expressions, statements and whitespace, and templates in the style of 30 model families.
# usage: make_chat_templates.py [RENDER_CHAT]      with the program, differences are printed too
import json
import pathlib
import sys

sys.argv.insert(2, ".")
from compare_chat_templates import (arguments, assistant, bare, call, conversations, documents, NOW, rendered, result,  # noqa: E402
                                    system, tokens, user, weather, with_program)

here = pathlib.Path(__file__).parent / "chat_templates"

# Each line is an expression that is printed, with these variables.
variables = {"n": 7, "x": -2.5, "big": 123456789012, "s": "Hello World", "u": "Straße ÀÉ ǆ ﬁ 東京 😀", "t": True, "z": None,
             "l": [3, 1, 2], "e": [], "d": {"b": 1, "a": [1, {"k": "v"}], "items": "x"}, "w": "  pad\t\n",
             "p": [{"name": "Bob", "age": 5, "a": {"b": 1}}, {"name": "alice", "age": 7}, {"name": "Cid", "age": None}],
             "q": "it's \"quoted\" \\ \n \x07 \u00a0 \u200b é"}
expressions = r"""
n + 1
n - 10
n * 2.5
n / 2
n // 2
-n // 2
n % 3
-n % 3
n % -3
x // 1
x % 1
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
7.0 // 2
1e16
1e15
1.0
0.1 + 0.2
1e-5
0.0001
1.5e300 * 1e10
123456789.123456789
1_000
0x1F
0b101
0o17
00
n / 0
n // 0
n % 0
9223372036854775807 - 1
true + 1
true
True and none
none
None
not t
not not e
1 == 1.0
1 == true
'a' == "a"
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{'a': 1} == {'a': 1.0}
1 < 2 < 3
1 < 3 < 2
1 != 2
'a' < 'b'
'B' < 'a'
[1, 2] < [1, 3]
1 < 'a'
none < 1
2 in l
5 not in l
'ell' in s
'k' in d
'b' in d
1 in 'abc'
1 in none
1 in undefined_thing
undefined_thing in l
'a' ~ 1 ~ none ~ 1.0 ~ true ~ l
'a' + 'b' * 3
3 * 'ab'
'ab' * -1
[1] * 3
(1,) * 2
l + [4]
l + (4,)
'a' + 1
s[0]
s[-1]
s[100]
s[1:4]
s[::-1]
s[::2]
s[-3:]
s[:-3]
s[10:2:-3]
u[2:5]
u[::-1]
l[0]
l[-1]
l[7]
l[1:]
l[::-1]
l[-2:10]
l[5:1]
(1, 2, 3)[1:]
e[::-1]
l['a']
l.a
d.b
d['b']
d.a[1].k
d.a.1.k
d['a'][0]
d['items']
d.missing
d.missing.more
d['missing']
d.get('b')
d.get('zz')
d.get('zz', 5)
d.keys()
d.values()
d.items()
d.keys() | list
d.items() | list
d | list
d | length
d
l
(1,)
()
[]
{}
{'a': 'b', 1: 2, none: [true, 1.5]}
(1, 'a', [none])
'quote\'s'
"tab\tnew\nline \x41 \u00e9 \101 \q"
['it\'s', 'say "x"', 'both \' "', '\\', '\n\r\t\x00\x7f', 'é ​']
[q]
[u]
q
missing
missing.x
missing()
missing + 1
missing | default('d')
missing | default
'' | default('d')
'' | default('d', true)
none | default('d')
none | default('d', boolean=true)
n | default(3) + 1
d.x | d('y')
s | length
u | length
none | length
5 | length
missing | length
missing | list
s | upper
s | lower
u | upper
u | lower
u | title
u | capitalize
u.title()
u.upper()
u.capitalize()
'ΑΣ ΣΑΣ.' | lower
'o\'neill mc-donald (x) [y] {z} <a' | title
'o\'neill mc-donald' | capitalize
"they're bill's".title()
w | trim
w.strip()
w.lstrip()
w.rstrip()
'xxaxx' | trim('x')
'xyaxy'.strip('yx')
'xyaxy'.lstrip('x')
'éaé'.strip('é')
'a,b,,c'.split(',')
' a  b c '.split()
' a  b c '.split(none, 1)
'a,b,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
' a b c '.rsplit(none, 1)
'a'.split('')
''.split(',')
''.split()
'a<br>b'.split('<br>')[-1]
'a\nb\r\nc\n'.splitlines()
'a\nb'.splitlines(true)
s.startswith('He')
s.startswith(('x', 'He'))
s.endswith('ld')
s.startswith('l', 2)
s.startswith(1)
s.replace('l', 'L')
s.replace('l', 'L', 1)
s.replace('', '-')
s | replace('l', 'L')
s | replace('l', 'L', 2)
n | replace(7, 8)
s.find('o')
s.rfind('o')
s.find('zz')
u.find('東')
s.index('zz')
s.count('l')
s.partition(' ')
s.rpartition('x')
s.removeprefix('Hello ')
s.removesuffix('World')
'7'.zfill(3)
'-7'.zfill(4)
'a'.center(4)
'a'.ljust(3) ~ '|'
'a'.rjust(3)
'a' | center(5) ~ '|'
'12'.isdigit()
'1a'.isalnum()
'aé'.isalpha()
' '.isspace()
''.isspace()
'abc'.islower()
'ABC'.isupper()
'a1'.upper().isupper()
'{} and {}'.format(1, 'b')
'{0} {1} {0}'.format(1, 'b')
'{x} {{}}'.format(x=none)
'{}'.format()
'%s is %d and %r %%' % ('a', 5, 'b')
'%s' % 5
'%.2f' % 2.345
'%s' | format('x')
'%s %s' % ('a',)
', '.join(['a', 'b'])
', '.join([1])
'-'.join('abc')
l | join(', ')
l | join
p | join(', ', attribute='name')
l | sort
l | sort(reverse=true)
['b', 'A', 'a', 'B'] | sort
['b', 'A', 'a', 'B'] | sort(case_sensitive=true)
p | sort(attribute='name') | map(attribute='name') | list
[1, 'a'] | sort
l | min
l | max
e | min
['b', 'A'] | min
p | max(attribute='name')
l | sum
p[:2] | sum(attribute='age')
l | sum(start=10)
['a'] | sum
l | first
l | last
e | first
e | last
'abc' | first
'abc' | last
d | first
l | reverse | list
s | reverse
l | unique | list
['a', 'A', 'b'] | unique | list
['a', 'A', 'b'] | unique(case_sensitive=true) | list
l | batch(2) | list
l | batch(2, 'x') | list
'abc' | list
(1, 2) | list
missing | list
5 | list
p | map(attribute='name') | list
p | map(attribute='a.b') | list
p | map(attribute='zz', default='-') | list
p | map(attribute='a.b', default=0) | list
l | map('string') | list
['a', 'b'] | map('upper') | join
l | map('nothing') | list
l | map('default', 1) | list
p | selectattr('age') | map(attribute='name') | list
p | selectattr('age', 'none') | map(attribute='name') | list
p | selectattr('name', 'equalto', 'Bob') | list | length
p | rejectattr('name', '==', 'Bob') | map(attribute='name') | join(',')
p | selectattr('a', 'defined') | list | length
p | rejectattr('age', 'in', [5, 7]) | map(attribute='name') | first
l | select('odd') | list
l | select('gt', 1) | list
l | reject('divisibleby', 2) | list
[0, 1, '', 'a', none] | select | list
[0, 1, '', 'a', none] | reject | list
l | select('odd') | length
'yes' if l | select('gt', 5) else 'no'
'yes' if missing | select else 'no'
d | dictsort
{'b': 1, 'A': 2, 'a': 0} | dictsort
{'b': 1, 'A': 2} | dictsort(true)
{'b': 1, 'a': 2} | dictsort(by='value')
{'b': 1, 'a': 2} | dictsort(false, 'key', true)
d | items | list
missing | items | list
l | items | list
'12' | int
' 12 ' | int
'1.9' | int
'x' | int
'x' | int(5)
'ff' | int(base=16)
none | int
1.9 | int
-1.9 | int
true | int
'1.5' | float
'x' | float
3 | float
n | string + 'a'
x | abs
-3 | abs
x | round
2.5 | round
3.5 | round
2.675 | round(2)
2.345 | round(1, 'ceil')
2.345 | round(1, 'floor')
-0.125 | round(0, 'ceil')
0.0 | round(1, 'floor')
1e308 * 10 | round(1, 'ceil')
1e308 | round(9, 'floor')
5 | round
5 | round(method='ceil')
'a' | round
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2, true)
'a\nb\n\nc' | indent(2, blank=true)
'a\nb' | indent('> ')
'a\n' | indent
'<a href="x">&\'' | escape
'<a>' | e
'<a>' | safe
('<a>' | safe) + '<b>'
'<b>' + ('<a>' | escape)
('<a>' | safe) ~ '<b>'
['<a>' | safe]
d | tojson
d | tojson(indent=2)
d | tojson(indent='\t')
l | tojson(separators=(',', ':'))
d | tojson(sort_keys=true)
u | tojson
u | tojson(ensure_ascii=true)
q | tojson
[1.0, 1e100, 0.1, true, none, 'x', []] | tojson
{} | tojson(indent=4)
[[], {}] | tojson(indent=1)
(1, 2) | tojson
missing | tojson
[missing] | tojson
d.items() | tojson
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
'<>&\'' | tojson
range(3) | list
range(3)
range(1, 10, 3) | list
range(5, 0, -2) | list
range(0)
range(3)[1]
range(3)[::-1] | list
range(100001)
range(1, 2, 0)
3 in range(5)
range(5) | length
dict(a=1, b=2)
dict({'a': 1}, b=2)
dict([['a', 1]])
namespace(a=1).a
namespace(a=1).b
namespace(a=1)['a']
namespace({'a': 2}).a
namespace(_a=1)
x is number
n is number
t is number
t is integer
n is integer
x is float
t is boolean
n is boolean
t is true
n is true
false is false
z is none
missing is none
missing is defined
missing is not defined
missing is undefined
z is defined
d.b is defined
d.zz is defined
missing is string
s is string
s is sequence
s is iterable
s is mapping
d is mapping
d is sequence
d is iterable
l is sequence
l is iterable
n is iterable
z is iterable
missing is sequence
missing is iterable
missing is mapping
d.items() is sequence
d.items() is iterable
(l | map('string')) is iterable
(l | map('string')) is sequence
n is odd
n is even
n is divisibleby 7
n is divisibleby(2)
n is eq 7
n is equalto(7)
n is sameas 7
t is sameas true
n is in [7]
n is not in [7]
n is in(l)
n is gt 3
n is lessthan 3
n is ge 7 and n is le 7
n is ne 7
'abc' is lower
'ABC' is upper
range is callable
s.upper is callable
d.keys is defined
d.append is defined
l.append is defined
'upper' is filter
'nothing' is filter
'odd' is test
n is nothing
n is divisibleby
s is string and n is number
not n is string
n is not string
s if n else z
s if z
'[' ~ (s if z) ~ ']'
'a' if false else 'b' if false else 'c'
(1 if t else 2) + 1
n if n > 5 and s else 0
z or s
e or d.b
z and s
n and s
1 or missing.x
(n)
n, s
[1, [2, [3]]] | string
l.append(1)
l.pop()
d.update({'a': 1})
d.pop('b')
d.setdefault('c', 1)
l.index(2)
l.count(2)
l.copy()
(1, 2).index(2)
s.__class__
s.__class__.__mro__
d.__class__
''.join([]).__init__
raise_exception('Ünique "reason"')
raise_exception()
strftime_now('%Y-%m-%d')
strftime_now('%d %b %Y, %A %H:%M:%S %p %j %y %B %a %e %I')
strftime_now('%-d %-m %F %T %%')
n | nothing
n.nothing
n.nothing.more
z.x
z.x.y
n()
s()
'a' 'b'
'a' 'b' | upper
[1, 2,]
{'a': 1,}
(1, 2,)
-x
+n
-s
- - n
n|string|length
n ~ s | length
1 + 2 | string
[1] [0]
{'a': {'b': {}}}
{'a': 1}.a
{[1]: 2}
d[[1]]
'abc'[1:][0]
l | map('upper') | list | length
[[1, 2], [3]] | sum(start=[])
[['b', 1], ['a', 2]] | sort
[{'a': 1}, {'a': 2}] | map(attribute='a') | sum
messages | map(attribute='role') | join(' ')
messages[0]['content']
messages[0].content | length
messages[-1].role
messages[5].role
messages | selectattr('role', 'eq', 'user') | list | length
(messages | selectattr('role', 'eq', 'user') | first).content
tools
tools is none
documents is defined
add_generation_prompt
bos_token ~ eos_token
9223372036854775807 + 0
""".strip("\n").split("\n")

statements = [
    "{% if n > 5 %}big{% elif n > 3 %}mid{% else %}small{% endif %}", "{% if z %}a{% elif n == 7 %}b{% else %}c{% endif %}",
    "{% if missing %}a{% endif %}b", "{% if not missing is defined %}a{% endif %}",
    "{% for i in l %}{{ i }},{% endfor %}", "{% for i in e %}{{ i }}{% else %}none{% endfor %}",
    "{% for i in missing %}{{ i }}{% else %}none{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for i in none %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}", "{% for a, b in [[1, 2], (3, 4)] %}{{ a + b }} {% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in l %}[{{ loop.previtem }}|{{ loop.nextitem }}|{{ loop.nextitem is defined }}]{% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in l %}{{ loop.nothing }}{% endfor %}",
    "{% for i in l if i > 1 %}{{ i }}{{ loop.length }}{{ loop.index }};{% endfor %}",
    "{% for i in l if i > 5 %}{{ i }}{% else %}none{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% else %}no{% endfor %}",
    "{% for i in l %}{% for j in l %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }};{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for i in l %}{% with a = i %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% endwith %};{% else %}e{% endfor %}",
    "{% for i in l %}{% with a = i %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% endwith %};{% endfor %}",
    "{% for i in l %}{% filter upper %}a{% if i == 1 %}{% continue %}{% endif %}b{% endfilter %};{% endfor %}",
    "{% for i in l %}{% set b %}a{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endset %}{{ b }};{% endfor %}",
    "{% for i in l %}{% generation %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endgeneration %}{% endfor %}",
    "{{ {(1, [2]): 3} }}", "{{ dict([((1, ([2],)), 3)]) }}", "{{ {}.get(([],), 4) }}", "{{ ({},) in {} }}", "{{ {(1, (2, 3)): 4} }}",
    "{% break %}", "{% for i in l %}{% break %}{% else %}e{% endfor %}", "{% for i in l %}{% continue %}{% else %}e{% endfor %}",
    "{% for i in [1] %}{% if n %}{{ i }}{% break %}{% endif %}{% else %}e{% endfor %}", "{{ (0 * x) // -2.5 }}{{ 7.5 // -2 }}{{ -7.5 % 2 }}{{ 5.0 // 3 }}{{ -0.0 }}",
    "{{ n[1:] }}", "{{ d[1:] }}", "{{ missing | indent }}", "{{ n | indent }}", "{{ 'a' % missing }}{{ 'a' % l }}", "{{ 'a' % n }}",
    "{% for i in 'añb' %}{{ i }}-{% endfor %}", "{% for i in range(3) %}{{ i }}{% endfor %}",
    "{% for i in l | map('string') %}{{ loop.last }}{% endfor %}",
    "{% set g = l | map('string') %}{{ g | list }}{{ g | list }}", "{% set g = l | select %}{{ g | first }}{{ g | list }}",
    "{% set g = l | select %}{{ 1 in g }}{{ g | list }}",
    "{% for i in l %}{% set k = i %}{% endfor %}{{ k }}", "{% set k = 0 %}{% for i in l %}{% set k = k + i %}{{ k }};{% endfor %}{{ k }}",
    "{% set ns = namespace(k=0) %}{% for i in l %}{% set ns.k = ns.k + i %}{% endfor %}{{ ns.k }}",
    "{% set d.b = 5 %}", "{% set nothing.b = 5 %}", "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% set ns = namespace(l=[]) %}{% set ns.l = ns.l + [1] %}{{ ns.l }}",
    "{% if t %}{% set k = 1 %}{% endif %}{{ k }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}",
    "{% set a %}x{{ n }}y{% endset %}[{{ a }}]", "{% set a | upper | trim %} x{{ n }}y {% endset %}[{{ a }}]",
    "{% set ns = namespace() %}{% set ns.a %}block{% endset %}{{ ns.a }}",
    "{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b }}", "{% set a = a %}{{ a }}", "{% set true = 1 %}",
    "{% macro f(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c=5) }}{{ f(b=1, a=2) }}{{ f() }}",
    "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{% endmacro %}{{ f(b=2) }}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(3) }}", "{% macro f(a, b) %}{{ b is defined }}{{ a }}{% endmacro %}{{ f(3) }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro f() %}{{ k }}{% endmacro %}{% set k = 5 %}{{ f() }}", "{% set k = 1 %}{% macro f() %}{% set k = 2 %}{{ k }}{% endmacro %}{{ f() }}{{ k }}",
    "{% macro f() %}{{ n }}{% endmacro %}{% for n in l %}{{ f() }}{% endfor %}",
    "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ l | map('string') | map('upper') | join }}{{ f('a') | upper }}{{ f('b') | length }}",
    "{% macro f() %}{{ loop }}{% endmacro %}{% for i in l %}{{ f() }}{% endfor %}",
    "{% set ns = namespace(f=none) %}{% macro f() %}in{% endmacro %}{% set ns.f = f %}{{ ns.f() }}",
    "{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}", "{{ f() }}{% macro f() %}{% endmacro %}",
    "{% macro f(a='x', b) %}{% endmacro %}", "{% macro f(x) %}{% for i in x %}{{ loop.index }}{% if i == 1 %}{% break %}{% endif %}{% endfor %}{% endmacro %}{{ f(l) }}",
    "{% filter upper %}ab{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}banana{% endfilter %}",
    "{% filter trim | indent(2) %}\n a\nb \n{% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}",
    "{% generation %}a{{ n }}{% endgeneration %}b", "{% for i in l %}{%- generation -%} {{ i }} {%- endgeneration -%}{% endfor %}",
    "a{# comment #}b", "a {#- strip -#} b", "a\n  {# line #}\nb", "a{# multi\nline #}\nb", "{# no end",
    "{% raw %}{{ n }}{% if %}{% endraw %}", "a {%- raw -%} {{ x }} {%- endraw -%} b", "  {% raw %}\n x\n  {% endraw %}\ny", "{% raw %}a",
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a\n  {% if t %}  \n  b\n  {% endif %}  \nc\n\n", "  {% if t %}a{% endif %}\n", "x  {% if t %}a{% endif %}  y",
    "a\n  {%+ if t %}\nb\n{% endif +%}\nc", "a \n {%- if t -%} \n b \n {%- endif -%} \n c", "a\n  {{ n }}\n  {{- n -}}  \n b",
    "{{ n }}\n", "{{ n }}\n\n", "\n\n{{ n }}", "a\r\nb\rc\n{{ n }}\r\n", "\t{% set a = 1 %}\t{{ a }}\t{% set b = 2 %}\n{{ b }}",
    "{% set a = 1 %}\n\n{{ a }}", "{%- set a = 1 -%}\n\n  {{ a }}", "  {#- a -#}  \n  b", "a{% if t -%}   \n\n  b{%- endif %}\nc",
    "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}", "{ {% if t %}{ { }{% endif %}", "{{ {'a': {'b': 1}}.a }}", "{{ {'a': {}} }}", "{{n}}{{-n}}{{ -n }}{{+n}}",
    "\u00a0 {%- if t %}\u2003x\u3000{%- endif %}\u00a0", "\u2003{% if t %}x{% endif %}", "é{{ 'ü' }}\n",
    "{{ n", "{% if n %}", "{% if n %}a{% endfor %}", "{% endif %}", "{{ }}", "{{ n n }}", "{{ (n }}", "{{ n) }}", "{{ [n }}", "{{ 'a }}", "{{ n | }}",
    "{{ n. }}", "{{ n['a' }}", "{% nothing %}", "{% %}", "{% for in l %}{% endfor %}", "{% for i l %}{% endfor %}", "{% set %}", "{% set a = %}",
    "{% set 1 = 2 %}", "{{ n is }}", "{{ n is defined is defined }}", "{{ a = 1 }}", "{{ f(a=1, 2) }}", "{{ $ }}", "{{ n ! }}", "{{ 'a' if }}", "{{ not }}",
    "{% if t: %}a{% endif %}", "{% for i in l: %}{{ i }}{% endfor %}", "{% for i in 1, 2 %}{{ i }}{% endfor %}", "{% if 1, %}x{% endif %}", "{% print n, s %}",
    "{% set x2 = namespace(found=false) %}{% for m in messages %}{% if m.role == 'user' and not x2.found %}{% set x2.found = true %}{{ m.content }}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if loop.first and m['role'] == 'system' %}{% set offset = 1 %}{% endif %}{% endfor %}{{ offset is defined }}",
    "{% for m in messages[1:] %}{{ m.role }}{{ loop.index0 % 2 == 0 }};{% endfor %}",
    "{% set loop_messages = messages %}{% for m in loop_messages %}{% set content = '<|' + m['role'] + '|>' + m['content'] | trim %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}",
    "{{ messages | tojson(indent=4) }}", "{% for k in [1, 2, 3] | reverse %}{{ k }}{% endfor %}", "{{ s.split(' ')[0].lower() | capitalize }}",
    "{% set parts = s.split(' ') %}{{ parts[0] }}{{ parts | last }}{{ parts[-1][:3] }}", "{% if s is string and 'World' in s %}y{% endif %}",
    "{%- for k, v in d.items() if k != 'a' %}{{ k }}{{ v }}{%- endfor %}", "{% set ns = namespace(a=1, b=namespace(c=2)) %}{{ ns.b.c }}",
    "{% for i in range(2) %}{% for j in range(2) %}{{ i }}{{ j }}{{ loop.first }} {% endfor %}{% endfor %}",
    "{{ x2 }}{{ x2 is defined }}", "{% set s = s ~ '!' %}{{ s }}", "{% for s in l %}{{ s }}{% endfor %}{{ s }}",
    "{% for x in l %}{% set x = 9 %}{{ x }}{% endfor %}{{ x }}", "{% include 'a' %}", "{% extends 'a' %}", "{% import 'a' as b %}", "{% do n %}",
    "line\n{% if missing.x %}{% endif %}", "\n\n{{ l.zz.y }}", "{{ l | sort(attribute='x') }}", "{{ d | dictsort(by='x') }}", "{{ s | trim(5) }}", "{{ s.strip(5) }}",
    "{{ '%s %s' | format(1, 2) }}", "{{ 'a' is in 'abc' }}{{ ['a'] is in 'abc' }}", "{{ [1, 2] | map(attribute=0) | list }}", "{{ [[1, 2]] | map(attribute=1) | list }}",
    "{% macro r(v, depth=0) %}{% if v is mapping %}{{ '{' }}{% for k, w in v | dictsort %}{{ k }}:{{ r(w, depth + 1) }}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}{% elif v is iterable and v is not string %}[{% for w in v %}{{ r(w, depth + 1) }}{% if not loop.last %},{% endif %}{% endfor %}]{% else %}{{ v | tojson }}{% endif %}{% endmacro %}{{ r({'b': [1, {'x': none}], 'a': 'q'}) }}",
]

chatml = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def roles(before, after, prompt="", start="", names="m['role']"):
    return (start + "{% for m in messages %}{{ '" + before + "' }}{{ " + names + " }}{{ '" + after[0] + "' }}{{ m['content'] | trim }}{{ '"
            + after[1] + "' }}{% endfor %}{% if add_generation_prompt %}{{ '" + prompt + "' }}{% endif %}")


alternate = ("{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set sys = '' %}"
             "{% set rest = messages %}{% endif %}{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             "{{ raise_exception('Roles must alternate user/assistant/user/assistant/…') }}{% endif %}")
families = {
    "chatml": chatml, "yi": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}" + chatml,
    "orca": "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe useful.<|im_end|>\n' }}{% endif %}" + chatml,
    "llama2": alternate + "{% if loop.first and sys %}{% set content = '<<SYS>>\n' ~ sys ~ '\n<</SYS>>\n\n' ~ m['content'] %}{% else %}{% set content = m['content'] %}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}{% else %}{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}",
    "mistral": "{{ bos_token }}" + alternate + "{% if m.role == 'user' %}{{ '[INST] ' }}{% if loop.last and sys %}{{ sys + '\n\n' }}{% endif %}{{ m.content + '[/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    "llama3": roles("<|start_header_id|>", ["<|end_header_id|>\\n\\n", "<|eot_id|>"], "<|start_header_id|>assistant<|end_header_id|>\\n\\n", "{{ bos_token }}"),
    "gemma": "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('There is no system role') }}{% endif %}" + roles("<start_of_turn>", ["\\n", "<end_of_turn>\\n"], "<start_of_turn>model\\n", "", "'model' if m.role == 'assistant' else m.role"),
    "phi3": roles("<|", ["|>\\n", "<|end|>\\n"], "<|assistant|>\\n"), "phi4": roles("<|im_start|>", ["<|im_sep|>", "<|im_end|>"], "<|im_start|>assistant<|im_sep|>"),
    "zephyr": "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "vicuna": "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim }} {% set messages = messages[1:] %}{% endif %}{% for m in messages %}{{ 'USER: ' if m.role == 'user' else 'ASSISTANT: ' }}{{ m.content | trim }}{{ ' ' if m.role == 'user' else eos_token }}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    "alpaca": "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% else %}{{ '### ' ~ ('Instruction' if m.role == 'user' else 'Response') ~ ':\n' ~ m.content.strip() }}{% endif %}{{ '\n\n' }}{% endfor %}{% if add_generation_prompt %}### Response:\n\n{% endif %}",
    "deepseek": "{% set ns = namespace(is_first=true, system='') %}{%- for m in messages %}{%- if m['role'] == 'system' %}{% set ns.system = ns.system + ('\n\n' if ns.system) + m['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system }}{%- for m in messages %}{%- if m['role'] == 'user' %}{{ '<|User|>' + m['content'] }}{%- elif m['role'] == 'assistant' and m['content'] %}{% set content = m['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{ '<|Assistant|>' + content + eos_token }}{%- endif %}{%- endfor -%}{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}",
    "qwen tools": "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {%- if messages[0].role == 'system' %}\n        {{- messages[0].content + '\\n\\n' }}\n    {%- endif %}\n    {{- '# Tools\\n<tools>' }}\n    {%- for tool in tools %}\n        {{- '\\n' }}\n        {{- tool | tojson }}\n    {%- endfor %}\n    {{- '\\n</tools><|im_end|>\\n' }}\n{%- endif %}\n{%- set ns = namespace(last=messages|length - 1) %}\n{%- for message in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n    {%- if message.role == 'user' %}{%- set ns.last = index %}{%- break %}{%- endif %}\n{%- endfor %}\n{%- for message in messages %}\n    {%- if message.role == 'assistant' %}\n        {{- '<|im_start|>assistant' }}\n        {%- if message.reasoning_content is string and loop.index0 > ns.last %}{{- '<think>' + message.reasoning_content.strip('\\n') + '</think>' }}{%- endif %}\n        {{- message.content or '' }}\n        {%- for tool_call in message.tool_calls %}\n            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}\n            {{- '\\n<tool_call>\\n{\"name\": \"' + tool_call.name + '\", \"arguments\": ' }}\n            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}\n            {{- '}\\n</tool_call>' }}\n        {%- endfor %}\n        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == 'tool' %}\n        {%- if loop.first or (messages[loop.index0 - 1].role != 'tool') %}{{- '<|im_start|>user' }}{%- endif %}\n        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}\n        {%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{- '<|im_end|>\\n' }}{%- endif %}\n    {%- elif message.role != 'system' or not tools %}\n        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n    {%- if enable_thinking is defined and enable_thinking is false %}\n        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}",
    "hermes": "{%- macro kind(spec) -%}{%- set names = {'string': 'str', 'number': 'float', 'integer': 'int', 'boolean': 'bool'} -%}{%- if spec.type in names -%}{{- names[spec.type] -}}{%- elif spec.type == 'array' and 'items' in spec -%}{{- 'list[' ~ kind(spec['items']) ~ ']' -}}{%- elif spec.type is iterable and spec.type is not string -%}{%- for t in spec.type -%}{{- t -}}{%- if not loop.last -%}|{%- endif -%}{%- endfor -%}{%- else -%}any{%- endif -%}{%- endmacro -%}{% for tool in tools or [] %}{% set f = tool.function if tool.function else tool %}{{ 'def ' + f.name + '(' }}{% for name, spec in f.parameters.properties | items %}{{ name + ': ' + kind(spec) }}{% if name not in (f.parameters.required or []) %} = {{ spec.default | default(none) | tojson }}{% endif %}{{ ', ' if not loop.last }}{% endfor %}{{ ')\n    \"\"\"' + f.description | trim | indent(4) + '\"\"\"\n' }}{% endfor %}" + chatml.replace("m['content']", "m['content'] | string"),
    "command-r": "{{ bos_token }}{% for d in documents or [] %}{% if loop.first %}{{ '<results>' }}{% endif %}\nDocument: {{ loop.index0 }}\n{% for key, value in d.items() %}{{ key | title }}: {{ value | string }}\n{% endfor %}{% if loop.last %}{{ '</results>' }}{% endif %}{% endfor %}{% for m in messages %}{{ '<|START_OF_TURN_TOKEN|><|' + (m.role | upper if m.role != 'assistant' else 'CHATBOT') + '_TOKEN|>' + m.content | string | trim + '<|END_OF_TURN_TOKEN|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
    "granite": "{%- if strftime_now is defined %}{%- set today = strftime_now('%B %d, %Y') %}{%- else %}{%- set today = '?' %}{%- endif %}{{ '<|start_of_role|>system<|end_of_role|>Today is ' ~ today ~ '.<|end_of_text|>\n' }}" + roles("<|start_of_role|>", ["<|end_of_role|>", "<|end_of_text|>\\n"], "<|start_of_role|>assistant<|end_of_role|>"),
    "falcon": "{% for m in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}{% if m['role'] == 'system' %}{{ 'System: ' }}{% elif m['role'] == 'user' %}{{ 'User: ' }}{% elif m['role'] == 'assistant' %}{{ 'Falcon: ' }}{% endif %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}{{ '\nFalcon:' }}{% endif %}",
    "openchat": "{{ bos_token }}{% for m in messages %}{{ 'GPT4 Correct ' + m['role'].title() + ': ' + m['content'] + '<|end_of_turn|>' }}{% endfor %}{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}",
    "solar": "{% for m in messages %}{% if m.content %}{{ '### ' + m.role | capitalize + ':\n' + m.content + '\n\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}### Assistant:\n{% endif %}",
    "tulu": "{% for m in messages %}{% if m.role == 'assistant' and loop.last %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ '<|' + m.role + '|>\n' + m.content + '\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    "olmo": "{{ eos_token }}" + roles("<|", ["|>\\n", "\\n"], "<|assistant|>\\n"), "internlm": "{{ bos_token }}" + chatml,
    "minicpm": "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<用户>' + m['content'].strip() + '<AI>' }}{% else %}{{ m['content'].strip() }}{% endif %}{% endfor %}",
    "exaone": "{% for m in messages %}{% if loop.first and m.role != 'system' %}{{ '[|system|][|endofturn|]\n' }}{% endif %}{{ '[|' + m.role + '|]' + m.content }}{% if m.role == 'user' %}{{ '\n' }}{% else %}{{ '[|endofturn|]\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}",
    "glm": "[gMASK]<sop>\n{%- macro visible(content) -%}\n{%- if content is string %}{{ content }}\n{%- elif content is iterable and content is not mapping %}\n{%- for part in content %}\n{%- if part is mapping and part.type == 'text' %}{{- part.text }}{%- elif part is string %}{{- part }}{%- endif %}\n{%- endfor %}\n{%- else %}{{- content }}{%- endif %}\n{%- endmacro -%}\n{% for m in messages %}\n{%- if m.role == 'assistant' %}<|assistant|>\n{{ visible(m.content).strip() }}{% for call in m.tool_calls %}{% set _args = call.function.arguments %}\n<tool_call>{{ call.function.name }}{% for k, v in _args.items() %}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>{% endfor %}</tool_call>{% endfor %}\n{%- else %}<|{{ m.role }}|>\n{{ visible(m.content) }}{% endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}<|assistant|>{{ '\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' }}{% endif %}",
    "nemotron": roles("<extra_id_1>", ["\\n", "\\n"], "<extra_id_1>Assistant\\n", "", "{'system': 'System', 'user': 'User'}.get(m.role, 'Assistant')"),
    "dbrx": "{% set sys = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('\\n') %}{% if sys %}{{ sys }}\n{% endif %}{% for m in messages | rejectattr('role', 'equalto', 'system') %}{{ m.role ~ ': ' ~ m.content ~ ('' if loop.last else '\n') }}{% endfor %}",
    "stablelm": roles("<|", ["|>", "<|endoftext|>\\n"], "<|assistant|>"), "smollm": "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nI am small.<|im_end|>\\n' }}{% endif %}" + chatml,
    "gpt-oss": "{%- macro ts(spec) -%}{%- if spec.enum is defined -%}{{ spec.enum | map('tojson') | join(' | ') }}{%- elif spec.type == 'object' -%}{{ '{' }}{%- for name, one in spec.properties.items() -%}{{ name ~ ('?' if name not in spec.get('required', []) else '') ~ ': ' ~ ts(one) }}{{ ', ' if not loop.last }}{%- endfor -%}{{ '}' }}{%- elif spec.type == 'array' -%}{{ ts(spec['items']) + '[]' }}{%- elif spec.anyOf is defined -%}{%- for one in spec.anyOf -%}{{ ts(one) }}{{ ' | ' if not loop.last }}{%- endfor -%}{%- elif spec.type is string -%}{{ spec.type | replace('integer', 'number') }}{%- else -%}{{ spec.type | join(' | ') }}{%- endif -%}{%- endmacro -%}{% for tool in tools or [] %}// {{ tool.function.description | replace('\n', '\n// ') }}\ntype {{ tool.function.name }} = (_: {% if tool.function.parameters and tool.function.parameters.properties %}{{ ts(tool.function.parameters) }}{% endif %}) => any;\n{% endfor %}{% for m in messages %}{{ '<|start|>' ~ m.role ~ '<|message|>' ~ (m.content if m.content is string else m.content | tojson) ~ '<|end|>' }}{% if m.thinking %}{{ m.thinking }}{% endif %}{% endfor %}",
}


def main():
    cases = []
    for e in expressions:
        cases.append({"template": "{{ " + e + " }}", "messages": conversations["turns"][:3], "variables": {**variables, **tokens}})
    for s in statements:
        cases.append({"template": s, "messages": conversations["turns"][:3], "variables": {**variables, **tokens}})
    chats = [[system, user("Hi\n"), assistant(" Hello. "), user("Wie geht's?")], [user("a"), assistant("b"), user("c"), assistant("d")],
             [user("w"), assistant("", tool_calls=[call(arguments)], reasoning="hm"), result]]
    for t in families.values():
        for i, chat in enumerate(chats):
            cases.append({"template": t, "messages": chat, "tools": [weather, bare] if i == 2 else None, "documents": documents if i == 0 else None,
                          "add_generation_prompt": i != 1, "variables": {**tokens, **({"enable_thinking": False} if i == 0 else {})}})
    for c in cases:
        c.setdefault("tools", None), c.setdefault("documents", None), c.setdefault("add_generation_prompt", False)
        c["now"] = NOW
    expected = [rendered(c) for c in cases]
    if len(sys.argv) > 1 and sys.argv[1] != ".":
        different = 0
        for c, theirs, ours in zip(cases, expected, with_program(sys.argv[1], cases)):
            if theirs.get("text") != ours.get("text"):
                different += 1
                print(repr(c["template"])[:200], "\n    transformers:", str(theirs)[:300], "\n    graft:       ", str(ours)[:300])
        print(f"{len(cases)} cases, {sum('error' in e for e in expected)} of them errors: {different} differ")
    assert not any(" at 0x" in e.get("text", "") for e in expected), "an address is printed"
    here.mkdir(exist_ok=True)
    shared = {"variables": {**variables, **tokens}, "messages": conversations["turns"][:3], "now": NOW}
    stored = []
    for c, e in zip(cases, expected):
        one = {k: v for k, v in c.items() if v not in (None, False) and shared.get(k) != v}
        stored.append({**one, **({"text": e["text"]} if "text" in e else {"refused": e["why"] if e.get("raised") else True})})
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in stored)
    (here / "cases.json").write_text('{"shared": ' + json.dumps(shared, ensure_ascii=False) + ',\n"cases": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
