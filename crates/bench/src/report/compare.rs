//! `bench compare a.json b.json`: results side by side, compared with the first one.

use std::fmt::Write as _;

use super::measure::{BetterDirection, MEASURES, Measure, format_value};
use crate::result::RunResult;

/// Differences up to this are noise: runs of one broker on one machine differ by as much.
const NOISE: f64 = 0.03;

/// A result with its name.
pub struct NamedResult<'a> {
    pub name: &'a str,
    pub result: &'a RunResult,
}

/// Returns the comparison as text; the first result is the reference.
pub fn compare(results: &[NamedResult<'_>]) -> String {
    let mut text = String::new();
    for warning in warnings(results) {
        let _ = writeln!(text, "! {warning}");
    }
    let _ = write!(text, "\n{:<16}", "");
    for named in results {
        let _ = write!(text, " {:>24}", shortened(named.name, 24));
    }
    text.push('\n');
    for measure in MEASURES {
        text.push_str(&row(measure, results));
    }
    text
}

fn row(measure: &Measure, results: &[NamedResult<'_>]) -> String {
    let values: Vec<Option<f64>> = results.iter().map(|named| (measure.of)(named.result)).collect();
    if values.iter().flatten().all(|value| *value == 0.0) {
        return String::new();
    }
    let mut text = format!("{:<16}", measure.name);
    for (index, value) in values.iter().enumerate() {
        let cell = match (value, values[0]) {
            (None, _) => "-".into(),
            (Some(value), Some(first)) if index > 0 => {
                format!(
                    "{} {}",
                    format_value(measure.unit, *value),
                    describe_ratio(measure.better, first, *value)
                )
            }
            (Some(value), _) => format_value(measure.unit, *value),
        };
        let _ = write!(text, " {cell:>24}");
    }
    text.push('\n');
    text
}

/// Returns the ratio to the first result, and whether the value is better.
fn describe_ratio(better: BetterDirection, first: f64, value: f64) -> String {
    if first == 0.0 {
        return if value == 0.0 { "=".into() } else { String::new() };
    }
    let ratio = value / first;
    let is_noise = (ratio - 1.0).abs() <= NOISE;
    let mark = match better {
        _ if is_noise => "≈",
        BetterDirection::Neither => " ",
        BetterDirection::More if ratio > 1.0 => "+",
        BetterDirection::Less if ratio < 1.0 => "+",
        BetterDirection::More | BetterDirection::Less => "-",
    };
    format!("×{ratio:.2} {mark}")
}

/// Returns the reasons why the figures may not be comparable.
pub fn warnings(results: &[NamedResult<'_>]) -> Vec<String> {
    let Some((first, others)) = results.split_first() else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    for other in others {
        let mut differs = |what: &str, is_different: bool| {
            if is_different {
                warnings.push(format!("{} and {} differ in {what}", first.name, other.name));
            }
        };
        let (a, b) = (first.result, other.result);
        differs("their scenario", a.scenario != b.scenario);
        let is_other_machine = a.machine.cpu != b.machine.cpu || a.machine.cores != b.machine.cores;
        differs("the machine of the generator", is_other_machine);
        differs("the transport", a.target.transport != b.target.transport);
        let (offered, as_offered) = (a.generator.offered, b.generator.offered);
        differs(
            "the offered rate",
            offered > 0.0 && (as_offered / offered - 1.0).abs() > NOISE,
        );
    }
    for named in results.iter().filter(|named| named.result.generator.is_saturated) {
        warnings.push(format!(
            "{}: the generator was at its own limit; the broker may be faster",
            named.name
        ));
    }
    for named in results.iter().filter(|named| named.result.is_interrupted) {
        warnings.push(format!("{}: the run was interrupted", named.name));
    }
    warnings
}

fn shortened(name: &str, length: usize) -> String {
    let count = name.chars().count();
    match count > length {
        true => format!("…{}", name.chars().skip(count - length + 1).collect::<String>()),
        false => name.into(),
    }
}
