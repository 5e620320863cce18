//! Runs random programs: every program must end, without a panic.

use rule_values::json;

use super::tests::allowance;
use super::*;

/// Every random program ends, with outputs or an error.
#[test]
fn random_programs_end() {
    const TOKENS: &[&str] = &[
        ".",
        "..",
        ".a",
        ".[]",
        ".[0]",
        ".[1:]",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        "a:",
        ",",
        "|",
        "?",
        "//",
        "+",
        "-",
        "*",
        "/",
        "%",
        "=",
        "|=",
        "+=",
        "//=",
        "==",
        "<",
        "and",
        "or",
        "not",
        "1",
        "-1",
        "1e300",
        "0.5",
        "null",
        "true",
        "\"x\"",
        "\"\\(.)\"",
        "as $x |",
        "$x",
        "reduce .[] as $x (0;",
        "foreach .[] as $x (0;",
        ";",
        "def f:",
        "f",
        "if",
        "then",
        "else",
        "end",
        "try",
        "catch",
        "label $l |",
        "break $l",
        "empty",
        "error",
        "path(",
        "getpath(",
        "setpath(",
        "del(",
        "to_entries",
        "from_entries",
        "with_entries(",
        "map(",
        "select(",
        "recurse",
        "range(",
        "limit(",
        "first(",
        "until(",
        "while(",
        "repeat(",
        "sort",
        "sort_by(",
        "group_by(",
        "unique",
        "min",
        "max",
        "add",
        "length",
        "keys",
        "flatten",
        "reverse",
        "tostring",
        "tonumber",
        "tojson",
        "fromjson",
        "explode",
        "implode",
        "split(",
        "join(",
        "test(",
        "match(",
        "sub(",
        "gsub(",
        "ascii_downcase",
        "infinite",
        "nan",
        "floor",
        "sqrt",
        "pow(",
        "indices(",
        "index(",
        "splits(",
        "@base64",
        "@csv",
        "@uri",
        "gmtime",
        "mktime",
        "todate",
        "strftime(",
        "tostream",
        "transpose",
        "combinations",
        "walk(",
        "input",
        "contains(",
        "has(",
        "in(",
        "paths",
        "type",
        "abs",
        "trim",
        "bsearch(",
    ];
    const INPUTS: &[&str] = &[
        "null",
        "{\"a\":[1,{\"b\":\"äx\"}],\"c\":-170141183460469231731687303715884105728}",
        "[[3,\"a\"],[null,2.5],[]]",
        "\"aaXbb\"",
        "-170141183460469231731687303715884105728",
    ];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let (mut ran, mut gave) = (0, 0);
    for _ in 0..60_000 {
        let tokens: Vec<&str> = (0..1 + next(7)).map(|_| TOKENS[next(TOKENS.len())]).collect();
        let mut text = tokens.join(" ");
        // Closing brackets are added, so that more of the texts are valid programs.
        for (open, close) in [("(", ")"), ("[", "]"), ("{", "}")] {
            let missing = text.matches(open).count().saturating_sub(text.matches(close).count());
            text += &close.repeat(missing);
        }
        let Ok(program) = Program::compile(text.as_bytes()) else {
            continue;
        };
        ran += 1;
        let input = json::decode(INPUTS[next(INPUTS.len())].as_bytes(), &JsonLimits::default()).expect("JSON");
        let small = ProgramLimits {
            budget: StepBudget::new(20_000, 1 << 20, None),
            ..allowance()
        };
        gave += u32::from(program.run(input, small).0.is_ok());
    }
    assert!(ran > 3000 && gave > 1000, "{ran} programs, {gave} with outputs");
}
