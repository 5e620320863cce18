//! Error messages of rules: the position, the unexpected text and the expected text.

use rules::{Rule, RuleLimits, UnknownColumns};

/// Rules with their errors. `|` begins each line of a rule.
const CASES: &[(&str, &str)] = &[
    (
        "",
        "line 1, column 1: found the end of the rule, expected SELECT or FOREACH",
    ),
    (
        "SELEC topic FROM \"t\"",
        "line 1, column 1: found \"SELEC\", expected SELECT or FOREACH",
    ),
    ("SELECT FROM \"t\"", "line 1, column 8: found FROM, expected a value"),
    (
        "SELECT topic",
        "line 1, column 13: found the end of the rule, expected an operator, AS, a comma or FROM",
    ),
    (
        "SELECT topic,\n  qos,\nFROM \"t\"",
        "line 3, column 1: found FROM, expected a value",
    ),
    (
        "SELECT topic FROM t/#",
        "line 1, column 21: found '#', expected a name, a number, a string in single quotes or an operator (write a topic filter in double quotes; a comment begins with --)",
    ),
    (
        "SELECT topic FROM \"t/#/x\"",
        "line 1, column 19: found \"t/#/x\", expected a topic filter or an event (# in the topic filter is not alone in its last level)",
    ),
    (
        "SELECT topic FROM \"$events/client_conected\"",
        "line 1, column 19: found unknown event \"$events/client_conected\", expected an event of docs/reference/sys-topics.md (did you mean \"$events/client_connected\"?)",
    ),
    (
        "SELECT topic FROM \"$share/g/t\"",
        "line 1, column 19: found \"$share/g/t\", expected a topic filter that is not shared (every rule receives each message exactly once)",
    ),
    (
        "SELECT topic FROM \"t\" WHERE",
        "line 1, column 28: found the end of the rule, expected a value",
    ),
    (
        "SELECT topic FROM \"t\" WHERE topic = ",
        "line 1, column 37: found the end of the rule, expected a value",
    ),
    (
        "SELECT topic FROM \"t\" WHERE qos = 1 2",
        "line 1, column 37: found 2, expected an operator or the end of the rule",
    ),
    (
        "SELECT 'abc FROM \"t\"",
        "line 1, column 8: found a quote that is not closed, expected a closing '",
    ),
    (
        "SELECT topic ; FROM \"t\"",
        "line 1, column 14: found ';', expected a name, a number, a string in single quotes or an operator",
    ),
    (
        "SELECT uper(topic) FROM \"t\"",
        "line 1, column 8: found unknown function uper, expected a function of docs/reference/rule-functions.md (did you mean upper?)",
    ),
    (
        "SELECT upper(topic, 1) FROM \"t\"",
        "line 1, column 8: found 2 arguments of upper, expected upper(string)",
    ),
    (
        "SELECT upper(1) FROM \"t\"",
        "line 1, column 14: found an integer, expected a string or a boolean as argument 1 of upper(string)",
    ),
    (
        "SELECT m.f(1) FROM \"t\"",
        "line 1, column 8: found a function in \"m\", expected a function without a module (functions in modules are not supported)",
    ),
    (
        "SELECT schema_decode('a', payload) FROM \"t\"",
        "line 1, column 8: found function schema_decode, expected another function: there is no schema registry",
    ),
    (
        "SELECT topc FROM \"t\"",
        "line 1, column 8: found unknown column \"topc\", expected a column of the events in FROM or an earlier field (did you mean topic?)",
    ),
    (
        "SELECT temperature FROM \"t\"",
        "line 1, column 8: found unknown column \"temperature\", expected a column of the events in FROM or an earlier field (fields of the payload are payload.temperature, a string is 'temperature')",
    ),
    (
        "SELECT reason FROM \"t\"",
        "line 1, column 8: found unknown column \"reason\", expected a column of the events in FROM or an earlier field (fields of the payload are payload.reason, a string is 'reason')",
    ),
    (
        "SELECT topic - 1 AS x FROM \"t\"",
        "line 1, column 14: found a string or undefined, expected a number on the left of -",
    ),
    (
        "SELECT 1.5 mod 2 AS x FROM \"t\"",
        "line 1, column 12: found a float, expected an integer on the left of mod",
    ),
    (
        "SELECT -'a' AS x FROM \"t\"",
        "line 1, column 9: found a string, expected a number after -",
    ),
    (
        "SELECT topic FROM \"t\" WHERE qos > 'high'",
        "line 1, column 35: found 'high', expected a number, because the other side is a number",
    ),
    (
        "SELECT topic FROM \"t\" WHERE 'yes'",
        "line 1, column 29: found a string, expected a condition",
    ),
    (
        "SELECT topic FROM \"t\" WHERE qos =~ 't/#'",
        "line 1, column 33: found an integer or undefined, expected a topic on the left of =~",
    ),
    (
        "SELECT regex_match(topic, '(a') FROM \"t\"",
        "line 1, column 27: found (a, expected a regular expression (error: unclosed group)",
    ),
    (
        "SELECT CASE topic END FROM \"t\"",
        "line 1, column 19: found END, expected an operator or WHEN",
    ),
    (
        "SELECT CASE WHEN true THEN 1 FROM \"t\"",
        "line 1, column 30: found FROM, expected an operator, WHEN, ELSE or END",
    ),
    (
        "SELECT IF(qos = 1, 2, 3) AS x FROM \"t\"",
        "line 1, column 8: found IF, expected a value (write CASE WHEN … THEN … ELSE … END)",
    ),
    (
        "SELECT payload.a. FROM \"t\"",
        "line 1, column 27: found the end of the rule, expected an operator, AS, a comma or FROM",
    ),
    (
        "SELECT payload.a[] FROM \"t\"",
        "line 1, column 18: found ], expected an index: a number, a name or a key in single quotes",
    ),
    ("SELECT (topic FROM \"t\"", "line 1, column 15: found FROM, expected )"),
    (
        "SELECT topic AS 'x' FROM \"t\"",
        "line 1, column 17: found 'x', expected a name after AS",
    ),
    (
        "FOREACH * FROM \"t\"",
        "line 1, column 9: found *, expected an array after FOREACH",
    ),
    (
        "FOREACH topic FROM \"t\"",
        "line 1, column 9: found a string or undefined, expected an array after FOREACH",
    ),
    (
        "FOREACH payload.a AS b.c FROM \"t\"",
        "line 1, column 22: found a path, expected a plain name for the elements",
    ),
    (
        "FOREACH payload.a DO itm.x FROM \"t\"",
        "line 1, column 22: found unknown column \"itm\", expected a column of the events in FROM or an earlier field (did you mean item?)",
    ),
];

#[test]
fn errors_include_position_found_and_expected() {
    let mut failures = String::new();
    for (sql, expected) in CASES {
        let found = match Rule::compile(sql, &RuleLimits::default()) {
            Ok(_) => "no error".to_owned(),
            Err(error) => error.to_string(),
        };
        if found != *expected {
            failures += &format!("{sql}\n  expected {expected}\n  found    {found}\n");
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

#[test]
fn unknown_columns_can_be_undefined() {
    let limits = RuleLimits {
        unknown_columns: UnknownColumns::Undefined,
        ..RuleLimits::default()
    };
    assert!(
        Rule::compile(
            "SELECT unknown, unknown.x[1] AS y FROM \"t\" WHERE unknown = other",
            &limits
        )
        .is_ok()
    );
}
