//! Valid programs with their outputs (mostly from the manual of jq), invalid programs with their errors, and programs
//! that would never end.

use rule_values::json;

use super::*;

pub(super) const STEPS_MAX: u64 = 1_000_000;

pub(super) fn allowance() -> ProgramLimits {
    ProgramLimits {
        budget: StepBudget::new(STEPS_MAX, 16 << 20, None),
        patterns: PatternCache::default(),
        outputs: 10_000,
        json: JsonLimits::default(),
        regex_bytes: 1 << 20,
        unix_nanoseconds: 1_425_599_621_500_000_000,
    }
}

fn run(program: &str, input: &str) -> Result<String, String> {
    let program = Program::compile(program.as_bytes())?;
    let input = json::decode(input.as_bytes(), &JsonLimits::default()).expect("the test has JSON");
    let (outputs, _) = program.run(input, allowance());
    let outputs = outputs.map_err(|fault| fault.message.into_owned())?;
    let texts = outputs
        .iter()
        .map(|output| String::from_utf8_lossy(&json::encode(output, json::JsonForm::default())).into_owned());
    Ok(texts.collect::<Vec<String>>().join(" "))
}

/// Program, input, outputs.
const GOOD: &[(&str, &str, &str)] = &[
    (".", r#"{"a":[1,2.5,null]}"#, r#"{"a":[1,2.5,null]}"#),
    ("", "1", "1"),
    (".foo, .\"bar\"?, .[\"baz\"]", r#"{"foo":1,"baz":3}"#, "1 null 3"),
    (".a.b.c", r#"{"a":{"b":{"c":7}}}"#, "7"),
    (".and.or", r#"{"and":{"or":1}}"#, "1"),
    (".[0], .[-1], .[9]", "[1,2,3]", "1 3 null"),
    (
        ".[2:4], .[:3], .[-2:]",
        r#"["a","b","c","d","e"]"#,
        r#"["c","d"] ["a","b","c"] ["d","e"]"#,
    ),
    (".[2:4]", "\"äbcdefghi\"", "\"cd\""),
    (".[]", r#"[{"name":"JSON"},2]"#, r#"{"name":"JSON"} 2"#),
    (".[]?, .a?", "3", ""),
    ("[.[] | .a?]", "[{}, true, {\"a\":1}]", "[null,1]"),
    ("(. + 2) * 5", "1", "15"),
    (
        ".user, .projects[]",
        r#"{"user":"s","projects":["jq","w"]}"#,
        r#""s" "jq" "w""#,
    ),
    ("[.[] | (., 1)]", "[5,6]", "[5,1,6,1]"),
    (
        "{user, title: .titles[]}",
        r#"{"user":"s","titles":["J","M"]}"#,
        r#"{"title":"J","user":"s"} {"title":"M","user":"s"}"#,
    ),
    ("{(.user): .titles}", r#"{"user":"s","titles":[1]}"#, r#"{"s":[1]}"#),
    (
        "1 as $x | {$x, y: $x, \"z\": 1, \"a b\": 2, @base64 \"q\": 3}",
        "null",
        r#"{"a b":2,"q":3,"x":1,"y":1,"z":1}"#,
    ),
    ("{a:(1,2), b:(3,4)} | [.a, .b]", "null", "[1,3] [2,3] [1,4] [2,4]"),
    ("[.., 9] | length", "[[{\"a\":1}]]", "5"),
    ("[..]", "[[1]]", "[[[1]],[1],1]"),
    ("[(1,2) + (10,20)]", "null", "[11,12,21,22]"),
    (".a + 1", r#"{"a":7}"#, "8"),
    (".a + .b", r#"{"a":[1,2],"b":[3]}"#, "[1,2,3]"),
    ("{a:1} + {b:2} + {a:42}", "null", r#"{"a":42,"b":2}"#),
    ("4 - .a", r#"{"a":3}"#, "1"),
    (". - [\"xml\", \"yaml\"]", r#"["xml","yaml","json"]"#, r#"["json"]"#),
    ("10 / . * 3", "5", "6"),
    (". / \", \"", "\"a, b,c, d\"", r#"["a","b,c","d"]"#),
    ("[.[] | (1 / .)?]", "[1,0,-1]", "[1,-1]"),
    ("\"ab\" * 3, \"x\" * 0", "null", "\"ababab\" null"),
    (
        "{k: {a: 1, b: 2}} * {k: {a: 0, c: 3}}",
        "null",
        r#"{"k":{"a":0,"b":2,"c":3}}"#,
    ),
    ("5 % 3, -5 % 3, 5 % -3, 7.9 % 2", "null", "2 -2 2 1"),
    ("-(1), -.a, 3 - -2", r#"{"a":2}"#, "-1 -2 5"),
    (
        "1.8 * 10 + 32, 1e3, .5, 0.1 + 0.2",
        "null",
        "50 1000 0.5 0.30000000000000004",
    ),
    ("9007199254740993, 1e17, 3.0", "null", "9007199254740993 1.0e17 3"),
    ("length", r#"[[1,2],"string",{"a":2},null,-5]"#, "5"),
    (".[] | length", r#"[[1,2],"ätring",{"a":2},null,-5]"#, "2 6 1 0 5"),
    ("utf8bytelength", "\"\\u03bc\"", "2"),
    ("keys, ([3,4] | keys)", r#"{"b":1,"a":2}"#, r#"["a","b"] [0,1]"#),
    (
        "map(has(\"foo\")), (.[0] | has(\"bar\"))",
        r#"[{"foo":1},{}]"#,
        "[true,false] false",
    ),
    ("map(in([0,1]))", "[2,0]", "[false,true]"),
    ("map(. + 1), map_values(. + 1)", "[1,2]", "[2,3] [2,3]"),
    (
        "map_values(. + 1), map_values(empty)",
        r#"{"a":1,"b":2}"#,
        r#"{"a":2,"b":3} {}"#,
    ),
    (
        "pick(.a, .b.c, .x)",
        r#"{"a":1,"b":{"c":2,"d":3},"e":4}"#,
        r#"{"a":1,"b":{"c":2},"x":null}"#,
    ),
    (
        "path(.a[0].b), [paths]",
        "{\"a\":[{}]}",
        r#"["a",0,"b"] [["a"],["a",0]]"#,
    ),
    ("[path(..)]", "[[1]]", "[[],[0],[0,0]]"),
    ("path(.a[1:3] | first)", "null", r#"["a",{"end":3,"start":1},0]"#),
    (
        "[paths(type == \"number\")], [leaf_paths]",
        "[1,[[],{\"a\":2}]]",
        r#"[[0],[1,1,"a"]] [[0],[1,1,"a"]]"#,
    ),
    (
        "del(.foo), del(.x.y)",
        r#"{"foo":42,"bar":1}"#,
        r#"{"bar":1} {"bar":1,"foo":42}"#,
    ),
    (
        "del(.[1, 2]), del(.[0,1,2] | select(. == \"b\")), del(.[1:])",
        r#"["a","b","c"]"#,
        r#"["a"] ["a","c"] ["a"]"#,
    ),
    (
        "getpath([\"a\",\"b\"]), [getpath([\"a\",\"b\"], [\"a\",\"c\"])]",
        r#"{"a":{"b":0,"c":1}}"#,
        "0 [0,1]",
    ),
    (
        "setpath([\"a\",1]; 3), delpaths([[\"b\"]])",
        r#"{"b":1}"#,
        r#"{"a":[null,3],"b":1} {}"#,
    ),
    (
        "to_entries, (to_entries | from_entries), with_entries(.value += 1)",
        r#"{"a":1,"b":2}"#,
        r#"[{"key":"a","value":1},{"key":"b","value":2}] {"a":1,"b":2} {"a":2,"b":3}"#,
    ),
    (
        "from_entries",
        r#"[{"name":"a","v":1},{"k":null,"value":false},{"Key":7,"Value":2}]"#,
        r#"{"7":2,"a":1,"null":false}"#,
    ),
    ("[.[] | select(. >= 2)]", "[1,5,3]", "[5,3]"),
    (
        "[.[] | numbers, strings, nulls, booleans, arrays, objects, (scalars | 9), (values | 8)]",
        "[null,1,\"a\"]",
        "[null,9,1,9,8,\"a\",9,8]",
    ),
    ("1, empty, 2", "null", "1 2"),
    ("[.[] | try error catch .]", "[1,null,{\"a\":1}]", "[1,null,{\"a\":1}]"),
    ("try error(\"x\") catch \"caught \\(.)\"", "null", "\"caught x\""),
    ("[(1, error(\"x\"), 2)?]", "null", "[1]"),
    (
        "try (try error(\"inner\") catch error(\"outer\")) catch .",
        "null",
        "\"outer\"",
    ),
    (
        "try ((1, 2) | if . == 2 then error(\"two\") else . end) catch .",
        "null",
        "1 \"two\"",
    ),
    ("(.[] | tonumber?) // 0", r#"["1","x"]"#, "1"),
    (
        "add, (map(tostring) | add), ([] | add), add(.[1:][])",
        "[1,2,3]",
        "6 \"123\" null 5",
    ),
    (
        "any, all, any(. > 2; .), all(.[]; . != null)",
        "[true,false]",
        "true false true true",
    ),
    ("[flatten, flatten(1)]", "[1,[2,[3]]]", "[[1,2,3],[1,2,[3]]]"),
    (
        "[range(3)], [range(2;4)], [range(0;10;3)], [range(5;0;-2)], [range(0,1;2)]",
        "null",
        "[0,1,2] [2,3] [0,3,6,9] [5,3,1] [0,1,1]",
    ),
    ("floor, ceil, round, sqrt", "6.25", "6 7 6 2.5"),
    ("pow(2; 10), log2, exp10", "8", "1024 3 100000000"),
    (".[] | tonumber", r#"[1,"2","1.5"]"#, "1 2 1.5"),
    (
        ".[] | tostring",
        r#"[1,"1",[1],1.5,null]"#,
        r#""1" "1" "[1]" "1.5" "null""#,
    ),
    (
        "map(type)",
        "[0,false,[],{},null,\"s\"]",
        r#"["number","boolean","array","object","null","string"]"#,
    ),
    (
        "infinite, -infinite, nan | tojson",
        "null",
        r#""1.7976931348623157e308" "-1.7976931348623157e308" "null""#,
    ),
    (
        "(nan | isnan), (nan < 1), (nan == nan), ([nan] | sort)",
        "null",
        "true true false [null]",
    ),
    (
        "sort",
        r#"[{"b":1},[2],"s",3,true,false,null,{"a":9}]"#,
        r#"[null,false,true,3,"s",[2],{"a":9},{"b":1}]"#,
    ),
    (
        "sort_by(.foo), sort_by(.foo, .bar), sort_by(-.foo)",
        r#"[{"foo":2,"bar":1},{"foo":1,"bar":2}]"#,
        r#"[{"bar":2,"foo":1},{"bar":1,"foo":2}] [{"bar":2,"foo":1},{"bar":1,"foo":2}] [{"bar":1,"foo":2},{"bar":2,"foo":1}]"#,
    ),
    ("group_by(.a) | map(length)", r#"[{"a":1},{"a":2},{"a":1}]"#, "[2,1]"),
    ("min, max, min_by(-.), ([] | min)", "[5,4,2,7]", "2 7 7 null"),
    ("unique, unique_by(. % 2)", "[1,2,5,3,5]", "[1,2,3,5] [2,1]"),
    ("reverse, (\"abc\" | reverse)", "[1,2]", "[2,1] \"cba\""),
    (
        "contains(\"bar\"), ([\"foobar\",\"x\"] | contains([\"bar\"])), ({a:[1,{b:\"xyz\"}]} | contains({a:[{b:\"y\"}]}))",
        "\"foobar\"",
        "true true true",
    ),
    ("inside(\"foobar\")", "\"bar\"", "true"),
    (
        "indices(\", \"), index(\",\"), rindex(\",\")",
        "\"ä,b, cd, efg\"",
        "[3,7] 1 7",
    ),
    (
        "indices(1), indices([1,2]), .[[1,2]]",
        "[0,1,2,1,3,1,2]",
        "[1,3,5] [1,5] [1,5]",
    ),
    (
        "startswith(\"foo\"), endswith(\"bar\"), ltrimstr(\"foo\"), rtrimstr(\"bar\")",
        "\"foobar\"",
        r#"true true "bar" "foo""#,
    ),
    ("trim, ltrim, rtrim", "\" a \"", r#""a" "a " " a""#),
    ("explode, (explode | implode)", "\"fä\"", "[102,228] \"fä\""),
    (
        "split(\", \"), (\"\" | split(\",\")), (\"ab\" | split(\"\"))",
        "\"a, b\"",
        r#"["a","b"] [] ["a","b"]"#,
    ),
    (
        "join(\", \"), join(\"\")",
        r#"["a",1,null,true]"#,
        r#""a, 1, , true" "a1true""#,
    ),
    ("ascii_downcase, ascii_upcase", "\"aBcÄ\"", "\"abcÄ\" \"ABCÄ\""),
    (
        "[limit(3; .[])], [first(range(10))], [first(empty)], last(range(5)), nth(5; range(10)), [limit(0; 1)]",
        "[0,1,2,3]",
        "[0,1,2] [0] [] 4 5 []",
    ),
    ("[skip(2; .[])], first, last, nth(1)", "[0,1,2,3]", "[2,3] 0 3 1"),
    (
        "[until(. > 100; . * 2)], [while(. < 100; . * 2)], [limit(4; repeat(. * 2))]",
        "1",
        "[128] [1,2,4,8,16,32,64] [1,2,4,8]",
    ),
    (
        "[recurse(if . < 3 then . + 1 else empty end)], [recurse(. * .; . < 20)]",
        "2",
        "[2,3] [2,4,16]",
    ),
    ("transpose", "[[1],[2,3]]", "[[1,2],[null,3]]"),
    ("[combinations]", "[[1,2],[3,4]]", "[[1,3],[1,4],[2,3],[2,4]]"),
    (
        "walk(if type == \"array\" then sort else . end)",
        "[[4,1],[8,5]]",
        "[[1,4],[5,8]]",
    ),
    ("bsearch(2), bsearch(4)", "[1,2,3]", "1 -4"),
    ("\"inter\\(. + 1) \\(\"a\" | \"<\\(.)>\")\"", "1", "\"inter2 <a>\""),
    (
        "[.[] | tojson | fromjson]",
        "[1,\"foo\",[\"foo\"]]",
        "[1,\"foo\",[\"foo\"]]",
    ),
    (
        "@text, @json, @base64, (@base64 | @base64d), @uri, @html, @sh",
        "\"<é'&>\"",
        r#""<é'&>" "\"<é'&>\"" "PMOpJyY+" "<é'&>" "%3C%C3%A9%27%26%3E" "&lt;é&#39;&amp;&gt;" "'<é'\\''&>'""#,
    ),
    (
        "@csv, @tsv",
        "[1,\"a\\\"b\",null,true]",
        r#""1,\"a\"\"b\",,true" "1\ta\"b\t\ttrue""#,
    ),
    (
        "@base64 \"v=\\(.)\", @json \"x\\([.])\"",
        "\"ab\"",
        r#""v=YWI=" "x[\"ab\"]""#,
    ),
    (
        "fromdate, (\"2015-03-05T23:51:47Z\" | fromdate | todate)",
        "\"2015-03-05T23:51:47Z\"",
        r#"1425599507 "2015-03-05T23:51:47Z""#,
    ),
    (
        "gmtime, (gmtime | mktime), strftime(\"%A, %B %d, %Y %j %H:%M\"), todate",
        "1425599621",
        r#"[2015,2,5,23,53,41,4,63] 1425599621 "Thursday, March 05, 2015 064 23:53" "2015-03-05T23:53:41Z""#,
    ),
    ("now", "null", "1425599621.5"),
    (
        "1 == 1.0, \"a\" != \"a\", [1] < [1,0], {} > [], null < false",
        "null",
        "true false true true true",
    ),
    ("(true, false) and (true, false)", "null", "true false false"),
    ("(true, false) or false, (null | not)", "null", "true false true"),
    (
        "[false, 1, null, 2] | (.[] // 9), (empty // 42), (.[0] // \"d\"), (false, null // 7), [(.[] | error) // 5]",
        "null",
        "1 2 42 \"d\" false 7 [5]",
    ),
    (".a?//\"x\"", "{}", "\"x\""),
    (
        "if . == 0 then \"zero\" elif . == 1 then \"one\" else \"many\" end",
        "1",
        "\"one\"",
    ),
    (
        "if true then 1 end, if false then 1 end, [if (true, false) then 1 else 2 end]",
        "5",
        "1 5 [1,2]",
    ),
    (
        "def addvalue(f): f as $x | map(. + $x); addvalue(.[0])",
        "[[1,2],[10]]",
        "[[1,2,1,2],[10,1,2]]",
    ),
    ("def addvalue($f): map(. + $f); addvalue(.[0])", "[1,2]", "[2,3]"),
    (
        "def f: def g: 3; g * 2; f, (def h(x; $y): x + $y; h(1; (10, 20)))",
        "null",
        "6 11 21",
    ),
    (
        "def fac: if . == 1 then 1 else . * (. - 1 | fac) end; [.[] | fac]",
        "[1,2,3,4]",
        "[1,2,6,24]",
    ),
    ("def f(g): def h: g; 2 | h; 5 | f(. * 10)", "null", "20"),
    ("def f(x): x | x; 2 | f(. * .)", "null", "16"),
    (". as [$a, $b, {c: $c}] | $a + $b + $c", "[2,3,{\"c\":4}]", "9"),
    (".[] as [$a] | {a: $a}", "[[0],[[1]]]", r#"{"a":0} {"a":[1]}"#),
    (
        ". as {as: $x, $y, $z: [$q], (\"k\" + \"l\"): $w, \"t\": $t} | [$x, $y, $z, $q, $w, $t]",
        r#"{"as":1,"y":2,"z":[3],"kl":4,"t":5}"#,
        "[1,2,[3],3,4,5]",
    ),
    (
        ". as $x | 1 as $y | [$x, $y, ($x + 1 as $x | $x), $x]",
        "7",
        "[7,1,8,7]",
    ),
    ("2 as $x | reduce .[] as $x ($x; . + $x)", "[10,20]", "32"),
    (
        "reduce .[] as [$i, $j] (0; . + $i * $j), reduce empty as $x (3; 4)",
        "[[1,2],[3,4]]",
        "14 3",
    ),
    (
        "[foreach .[] as $x (0; . + $x)], [foreach .[] as $x (0; . + $x; [$x, .])]",
        "[1,2,3]",
        "[1,3,6] [[1,1],[2,3],[3,6]]",
    ),
    (
        "[label $out | foreach .[] as $i (0; . + 1; if . > 2 then ., break $out else $i end)]",
        "[7,8,9,10]",
        "[7,8,3]",
    ),
    ("[label $a | label $b | 1, break $a, 2]", "null", "[1]"),
    (
        ".foo = .bar, (.foo |= .bar)",
        r#"{"bar":42,"foo":{"bar":1}}"#,
        r#"{"bar":42,"foo":42} {"bar":42,"foo":1}"#,
    ),
    (
        ".a += 1, (.b -= 1), (.c *= 2), (.d //= 5), (.a, .b) = 0",
        r#"{"a":1,"b":2,"c":3}"#,
        r#"{"a":2,"b":2,"c":3} {"a":1,"b":1,"c":3} {"a":1,"b":2,"c":6} {"a":1,"b":2,"c":3,"d":5} {"a":0,"b":0,"c":3}"#,
    ),
    ("(.[] | select(. >= 2)) |= empty", "[1,5,3,0,7]", "[1,0]"),
    (
        ".[1:3] = [9], (.[0:2] |= map(. * 10))",
        "[1,2,3,4]",
        "[1,9,4] [10,20,3,4]",
    ),
    (
        ".a[1].b = 1, (.. |= (if type == \"number\" then . + 1 else . end))",
        "{\"c\":1}",
        r#"{"a":[null,{"b":1}],"c":1} {"c":2}"#,
    ),
    (
        "(first(.[] | select(. > 1))) = 0, (if .[0] == 1 then .[1] else .[2] end) = 8, (.[5] // .[0]) = 6",
        "[1,2,3]",
        "[1,0,3] [1,8,3] [6,2,3]",
    ),
    (
        "(limit(2; .[])) = 0, (getpath([1]) = 5), (reduce (0, 0) as $x (.; .[1:]) | length)",
        "[1,2,3]",
        "[0,0,3] [1,5,3] 1",
    ),
    (
        "test(\"a.c\"), test(\"A.C\"; \"i\"), [match(\"(?<x>b)(z)?\"; \"g\") | .offset, .captures[0].name, .captures[1].string]",
        "\"äabc\"",
        "true true [2,\"x\",null]",
    ),
    (
        "capture(\"(?<a>[a-z]+)-(?<n>[0-9]+)\")",
        "\"xyzzy-14\"",
        r#"{"a":"xyzzy","n":"14"}"#,
    ),
    (
        "[scan(\"c\")], [scan(\"(a+)(b+)\")]",
        "\"abcaabbc\"",
        r#"["c","c"] [["a","b"],["aa","bb"]]"#,
    ),
    (
        "split(\", *\"; null), [splits(\"x\")]",
        "\"ab,cd,   ef\"",
        r#"["ab","cd","ef"] ["ab,cd,   ef"]"#,
    ),
    (
        "sub(\"(?<x>[a-z])\"; \"<\\(.x)>\"), gsub(\"[a-z]\"; \"-\"), gsub(\"(?<d>\\\\d)\"; \":\\(.d);\")",
        "\"ab1\"",
        r#""<a>b1" "--1" "ab:1;""#,
    ),
    (
        "[tostream], fromstream(tostream)",
        "[1,[2]]",
        "[[[0],1],[[1,0],2],[[1,0]],[[1]]] [1,[2]]",
    ),
    (
        "[1 | truncate_stream([[0],1],[[1,0],2],[[1,0]],[[1]])]",
        "null",
        "[[[0],2],[[0]]]",
    ),
    (
        "IN(2, 3), any(.[]?; .), ([{id: 1}] | INDEX(.id)), isempty(empty), isvalid(error), abs, toarray",
        "2",
        r#"true false {"1":{"id":1}} true false 2 [2]"#,
    ),
    (
        "$__none?",
        "null",
        "error: line 1, column 1 of the program: found $__none, which is not defined",
    ),
    ("# a comment\n. # another", "1", "1"),
    (
        "ascii(65)?",
        "1",
        "error: line 1, column 1 of the program: ascii has 0 arguments, not 1",
    ),
];

#[test]
fn programs_have_the_outputs_of_jq() {
    let failures: Vec<String> = GOOD
        .iter()
        .filter_map(|(program, input, expected)| {
            let found = run(program, input).unwrap_or_else(|error| format!("error: {error}"));
            (found != *expected)
                .then(|| format!("{program}\n  over     {input}\n  expected {expected}\n  found    {found}"))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn errors_include_their_position() {
    for (program, input, expected) in [
        (
            ".a.",
            "1",
            "line 1, column 4 of the program: found the end, expected a field",
        ),
        (
            "[1, 2",
            "1",
            "line 1, column 6 of the program: found the end, expected ]",
        ),
        (
            "1 +\n  foo",
            "1",
            "line 2, column 3 of the program: unknown function foo/0",
        ),
        (
            "lenght",
            "1",
            "line 1, column 1 of the program: unknown function lenght/0 (did you mean length?)",
        ),
        (
            "map",
            "1",
            "line 1, column 1 of the program: map has 1 arguments, not 0",
        ),
        (
            "input",
            "1",
            "line 1, column 1 of the program: input is not supported: a rule has only one input",
        ),
        (
            "\"abc",
            "1",
            "line 1, column 1 of the program: the string is not closed",
        ),
        (
            "1 == 2 == 3",
            "1",
            "line 1, column 8 of the program: found ==, which needs parentheses here",
        ),
        (
            "break $x",
            "1",
            "line 1, column 1 of the program: found break $x, but there is no label $x",
        ),
        (
            "import \"a\" as a; 1",
            "1",
            "line 1, column 1 of the program: found import: modules are not supported",
        ),
        (
            ". as [$a] ?// $a | $a",
            "1",
            "line 1, column 11 of the program: found ?//, which is not supported: use if with type",
        ),
        (
            "a ` b",
            "1",
            "line 1, column 3 of the program: found '`', which is not valid in jq",
        ),
        (
            ".[] | .a",
            "[5]",
            "jq: line 1, column 7 of the program: Cannot index number with \"a\"",
        ),
        (
            ".a |\n  tonumber",
            r#"{"a":"x"}"#,
            "jq: line 2, column 3 of the program: string (\"x\") cannot be parsed as a number",
        ),
        (
            "1 + \"a\"",
            "1",
            "jq: line 1, column 3 of the program: number (1) and string (\"a\") cannot be added",
        ),
        (
            ".[]",
            "5",
            "jq: line 1, column 2 of the program: Cannot iterate over number (5)",
        ),
        (
            "1 / 0",
            "5",
            "jq: line 1, column 3 of the program: number (1) and number (0) cannot be divided because the divisor is zero",
        ),
        (
            "error({a: 1})",
            "5",
            "jq: line 1, column 1 of the program: error with object ({\"a\":1})",
        ),
        (
            "path(1 + 2)",
            "5",
            "jq: line 1, column 8 of the program: Invalid path expression with result number (3)",
        ),
        ("test(\"(\")", "\"a\"", "jq: line 1, column 1"),
    ] {
        let error = run(program, input).expect_err(program);
        assert!(
            error.starts_with(expected),
            "{program}\n  expected {expected}\n  found    {error}"
        );
    }
}

/// Each program ends with an error, in bounded time, memory and stack. `try` does not catch the error.
#[test]
fn endless_programs_are_stopped() {
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    let wide = vec!["1"; 30_000].join("+");
    let pipes = vec!["."; 30_000].join("|");
    let digits = format!("\"{}\"", "a".repeat(60_000));
    for program in [
        "range(infinite)",
        "[range(infinite)]",
        "last(range(infinite))",
        "reduce range(infinite) as $x (0; . + $x)",
        "def f: f; f",
        "def f: 1 + f; f",
        "def f: [f]; f",
        "def f(g): f(f(g)); f(.)",
        "def f: ., f; [f]",
        "repeat(.)",
        "[repeat(1)]",
        "[recurse(.)]",
        "[limit(1e9; repeat(1))]",
        "until(false; . + 1)",
        "[while(true; .)]",
        "try range(infinite) catch 1",
        "[.[]?, (def f: f; f)?]",
        "(def f: f; f) // 1",
        "reduce range(1000000) as $i (null; [.])",
        "reduce range(1000000) as $i (null; {a: .})",
        "reduce range(1000000) as $i (null; setpath([\"a\", \"b\"]; .))",
        "[range(100000)] | [.[] as $x | .[] as $y | $x]",
        ".[1e9] = 1",
        ".[4294967296] = 1",
        "\"x\" * 1e9",
        "\"abc\" * 1e300",
        "reduce range(64) as $i (\"x\"; . + .)",
        "reduce range(64) as $i ([1]; . + .)",
        "path(repeat(.a))",
        "reduce range(1e9) as $i (1; . * 2)",
        "[range(3000)] | combinations(9)",
        "[range(1000)] | map([range(1000)]) | flatten | sort | group_by(.)",
        "[range(200000)] - [range(200000)]",
        "[range(200000)] | contains([range(200000) | . + 1])",
        "gsub(\"\"; \"a\"; \"g\") | gsub(\"\"; \"aaaa\") | gsub(\"\"; \"aaaa\") | gsub(\"\"; \"aaaa\") | gsub(\"\"; \"aaaa\") | gsub(\"\"; \"aaaa\") | gsub(\"\"; \"aaaa\") | gsub(\"\"; \"aaaa\") | gsub(\"\"; \"aaaa\") | gsub(\"\"; \"aaaa\")",
        "[range(100000) | tostring] | [.[] | test(\"a\\(.)\")]",
        "\"\\([range(1000)] | .[])\\([range(1000)] | .[])\"",
        "{a: range(1000), b: range(1000), c: range(1000)}",
        &deep,
        &wide,
        &pipes,
        &format!(
            "{digits} | gsub(\"a\"; \"bb\") | gsub(\"b\"; \"cc\") | gsub(\"c\"; \"dd\") | gsub(\"d\"; \"ee\") | gsub(\"e\"; \"ff\")"
        ),
    ] {
        let shown: String = program.chars().take(80).collect();
        let input = if program.starts_with("gsub") {
            "\"abcdefgh\""
        } else {
            "null"
        };
        let error = run(program, input).map(|outputs| outputs.len()).expect_err(&shown);
        let is_bound = [
            "step limit",
            "byte limit",
            "nests deeper",
            "nest deeper",
            "outputs",
            "steps",
            "patterns",
        ];
        assert!(is_bound.iter().any(|text| error.contains(text)), "{shown}: {error}");
    }
}

#[test]
fn deep_programs_within_the_limits_work() {
    for (program, expected) in [
        ("def f: if . == 0 then 0 else . - 1 | f end; 60 | f", "0"),
        ("reduce range(100) as $i (1; [.]) | flatten", "[1]"),
        ("[range(5000)] | map(. * 2) | add", "24995000"),
        ("reduce range(2000) as $i ({}; .[\"k\\($i)\"] = $i) | length", "2000"),
        (
            "[range(2000) | {a: (. % 7), b: .}] | group_by(.a) | map(length) | add",
            "2000",
        ),
    ] {
        assert_eq!(run(program, "null").as_deref(), Ok(expected), "{program}");
    }
}
