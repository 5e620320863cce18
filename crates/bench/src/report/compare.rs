//! `bench compare a.json b.json`: results side by side, each against the first.

use std::fmt::Write as _;

use super::measure::{Better, MEASURES, Measure, in_words};
use crate::result::RunResult;

/// Differences within this are noise: rounds of one broker on one machine differ by as much.
const NOISE: f64 = 0.03;

/// A result and what to call it.
pub struct Named<'a> {
    pub name: &'a str,
    pub result: &'a RunResult,
}

/// The whole comparison as text; the first result is what the others are measured by.
pub fn compare(results: &[Named<'_>]) -> String {
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

fn row(measure: &Measure, results: &[Named<'_>]) -> String {
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
                    in_words(measure.unit, *value),
                    judgement(measure.better, first, *value)
                )
            }
            (Some(value), _) => in_words(measure.unit, *value),
        };
        let _ = write!(text, " {cell:>24}");
    }
    text.push('\n');
    text
}

/// The ratio to the first, and whether that is better.
fn judgement(better: Better, first: f64, value: f64) -> String {
    if first == 0.0 {
        return if value == 0.0 { "=".into() } else { String::new() };
    }
    let ratio = value / first;
    let is_noise = (ratio - 1.0).abs() <= NOISE;
    let mark = match better {
        _ if is_noise => "≈",
        Better::Neither => " ",
        Better::More if ratio > 1.0 => "+",
        Better::Less if ratio < 1.0 => "+",
        Better::More | Better::Less => "-",
    };
    format!("×{ratio:.2} {mark}")
}

/// Why the numbers may not be comparable.
pub fn warnings(results: &[Named<'_>]) -> Vec<String> {
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
            "{}: the generator was at its own limit, the broker may be capable of more",
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
