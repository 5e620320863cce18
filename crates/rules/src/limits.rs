//! Limits of a rule.

use rule_values::json::JsonLimits;

/// The meaning of a name that is not a column of the rule's events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownColumns {
    /// An error when the rule is compiled, because most such names are spelling mistakes.
    #[default]
    Refuse,
    /// `undefined` in every message, as in EMQX.
    Undefined,
}

/// Limits of the cost of a rule. Work is counted in steps: an expression, a value, or 16 bytes read is about one step.
/// The environment of an evaluation limits its time.
#[derive(Clone, Copy, Debug)]
pub struct RuleLimits {
    pub sql_bytes_max: usize,
    /// Maximum nesting of parentheses, arguments and paths in the text.
    pub nesting_max: u16,
    pub unknown_columns: UnknownColumns,
    /// Maximum steps for one rule and one message.
    pub steps_max: u64,
    /// Maximum bytes of all values created by functions and of all outputs, for one rule and one message.
    pub result_bytes_max: usize,
    /// Maximum outputs of FOREACH for one message.
    pub outputs_max: usize,
    pub json: JsonLimits,
    /// Maximum size of a compiled regular expression.
    pub regex_bytes_max: usize,
}

impl Default for RuleLimits {
    fn default() -> RuleLimits {
        RuleLimits {
            sql_bytes_max: 64 << 10,
            nesting_max: 48,
            unknown_columns: UnknownColumns::default(),
            steps_max: 1_000_000,
            result_bytes_max: 16 << 20,
            outputs_max: 10_000,
            json: JsonLimits::default(),
            regex_bytes_max: 1 << 20,
        }
    }
}
