//! Limits of rules without an option, for the page `docs/reference/limits.md`: what, how much, unit.

use crate::budget::VALUE_NESTING_MAX;
use crate::parse::STEPS_MAX;
use crate::rule::RuleLimits;
use crate::template::TEMPLATE_BYTES_MAX;

pub fn fixed_limits() -> Vec<(&'static str, u64, &'static str)> {
    let limits = RuleLimits::default();
    vec![
        ("Text of a rule", limits.sql_bytes_max as u64, "bytes"),
        ("Nesting of a rule", limits.nesting_max.into(), ""),
        ("Steps of a path, such as `a.b.c`", STEPS_MAX as u64, ""),
        ("Steps of an evaluation", limits.steps_max, ""),
        (
            "Bytes that an evaluation makes",
            limits.result_bytes_max as u64,
            "bytes",
        ),
        (
            "Bytes of the outputs of an evaluation",
            limits.result_bytes_max as u64,
            "bytes",
        ),
        ("Outputs of FOREACH for one message", limits.outputs_max as u64, ""),
        (
            "Nesting of arrays and maps that a rule makes",
            VALUE_NESTING_MAX as u64,
            "",
        ),
        ("Nesting of a JSON payload", limits.json.depth_max as u64, ""),
        ("Values and keys in a JSON payload", limits.json.nodes_max as u64, ""),
        ("Compiled regular expression", limits.regex_bytes_max as u64, "bytes"),
        ("Nesting of a jq program", crate::jq::PROGRAM_NESTING_MAX, ""),
        ("Nesting of the calls of a jq program", crate::jq::CALL_NESTING_MAX, ""),
        ("Text of a template", TEMPLATE_BYTES_MAX as u64, "bytes"),
    ]
}
