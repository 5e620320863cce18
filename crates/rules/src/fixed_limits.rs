//! Limits of rules without an option, for the page `docs/reference/limits.md`: what, how much, unit, and what happens
//! beyond.

use rule_values::VALUE_NESTING_MAX;

use crate::limits::RuleLimits;
use crate::parse::STEPS_MAX;
use crate::template::TEMPLATE_BYTES_MAX;

const REFUSED: &str = "The rule is refused.";
const FAILS: &str = "The rule fails for the message.";

pub fn fixed_limits() -> Vec<(&'static str, u64, &'static str, &'static str)> {
    let limits = RuleLimits::default();
    vec![
        ("Length of the SQL text", limits.sql_bytes_max as u64, "bytes", REFUSED),
        (
            "Nesting of parentheses, arguments and paths in SQL, in levels",
            limits.nesting_max.into(),
            "",
            REFUSED,
        ),
        (
            "Parts of a path in SQL: `a.b.c` has three",
            STEPS_MAX as u64,
            "",
            REFUSED,
        ),
        (
            "Steps of the evaluation of a rule for one message",
            limits.steps_max,
            "",
            FAILS,
        ),
        (
            "Size of all values that functions create for one message",
            limits.result_bytes_max as u64,
            "bytes",
            FAILS,
        ),
        (
            "Size of all outputs of a rule for one message",
            limits.result_bytes_max as u64,
            "bytes",
            FAILS,
        ),
        (
            "Outputs of FOREACH for one message",
            limits.outputs_max as u64,
            "",
            FAILS,
        ),
        (
            "Nesting of arrays and maps that a rule creates, in levels",
            VALUE_NESTING_MAX as u64,
            "",
            FAILS,
        ),
        (
            "Nesting of a JSON payload, in levels",
            limits.json.depth_max as u64,
            "",
            "The payload does not count as JSON.",
        ),
        (
            "Values and keys in a JSON payload, together",
            limits.json.nodes_max as u64,
            "",
            "The payload does not count as JSON.",
        ),
        (
            "Memory of a compiled regular expression",
            limits.regex_bytes_max as u64,
            "bytes",
            "A constant expression is refused. Otherwise the rule fails for the message.",
        ),
        #[cfg(feature = "jq")]
        (
            "Nesting of a jq program, in levels",
            jq::PROGRAM_NESTING_MAX,
            "",
            "A constant program is refused. Otherwise the rule fails for the message.",
        ),
        #[cfg(feature = "jq")]
        (
            "Nesting of function calls in a jq program, in levels",
            jq::CALL_NESTING_MAX,
            "",
            FAILS,
        ),
        (
            "Length of a template of an action or of republish",
            TEMPLATE_BYTES_MAX as u64,
            "bytes",
            "The action or the rule is refused.",
        ),
    ]
}
