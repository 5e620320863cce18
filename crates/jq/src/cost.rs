//! Runs every function of jq on large values. Each must end in time and charge steps for its work. `tests/cost.rs` of
//! the crate `rules` does the same for the functions of rules.

use std::time::Duration;

use rule_values::{Map, Text, TimeLimit};

use super::*;

const TIME_MAX: Duration = Duration::from_millis(20);
/// Maximum time between two readings of the clock. Test builds are several times slower than release builds.
const SLACK: Duration = Duration::from_millis(60);
/// Maximum time per step, and maximum time of a run without steps.
const STEP_MAX: Duration = Duration::from_nanos(400);
const CONSTANT_MAX: Duration = Duration::from_millis(3);

/// Processor time of this thread, so that other work on the machine does not count.
fn clock() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Values of about 256 KiB each, encoded as JSON.
fn inputs() -> Vec<(&'static str, Value)> {
    let numbers = |count: u64| (0..count).map(|number| Value::from(number.wrapping_mul(7_919) % 65_537));
    let floats = numbers(30_000).enumerate().map(|(at, _)| Value::Float(at as f64 + 0.1));
    let key = |number: &Value| Text::from(format!("k{number:?}"));
    let entries = numbers(20_000).map(|number| (key(&number), number));
    let pairs = numbers(2_000).map(|number| Value::array(vec![number, Value::from("a")]));
    let object = |number| Value::Map(Map::from_entries(vec![(Text::from("a"), number)]));
    vec![
        ("numbers", Value::array(numbers(60_000).collect())),
        ("floats", Value::array(floats.collect())),
        ("texts", Value::array(vec![Value::from("abc"); 40_000])),
        ("pairs", Value::array(pairs.collect())),
        ("objects", Value::array(numbers(20_000).map(object).collect())),
        ("object", Value::Map(entries.collect())),
        ("text", Value::from("<".repeat(256 << 10))),
        ("words", Value::from("%Y ä&".repeat(48 << 10))),
        ("control", Value::from("\u{1}".repeat(256 << 10))),
        ("json", Value::from(format!("[{}1]", "1.5,".repeat(64 << 10)))),
        ("number", Value::Int(100_000)),
        ("null", Value::Null),
    ]
}

/// Arguments: constants and large values.
const ARGUMENTS: &[&str] = &[".", "\"a\"", "1e9", ".[0]", "[1, 2]", "\"<[^>]*>|<\""];
/// Arguments of functions with two or more arguments.
const FEW_ARGUMENTS: &[&str] = &[".", "\"<[^>]*>|<\"", "1e9"];

fn programs() -> Vec<String> {
    let natives = builtins::NATIVES
        .iter()
        .map(|(name, arity, _)| ((*name).to_owned(), *arity));
    let prelude = prelude::names().prelude.iter().cloned();
    let mut programs = Vec::new();
    for (name, arity) in natives.chain(prelude).filter(|(name, _)| !name.starts_with('_')) {
        let choices = if arity < 2 { ARGUMENTS } else { FEW_ARGUMENTS };
        let mut calls = vec![Vec::new()];
        for _ in 0..arity {
            let longer = |call: Vec<&'static str>| choices.iter().map(move |it| [&call[..], &[*it]].concat());
            calls = calls.into_iter().flat_map(longer).collect();
        }
        programs.extend(calls.into_iter().map(|call| match call.is_empty() {
            true => name.clone(),
            false => format!("{name}({})", call.join("; ")),
        }));
    }
    let formats = ["text", "json", "html", "uri", "csv", "tsv", "sh", "base64", "base64d"];
    programs.extend(formats.map(|format| format!("@{format}")));
    let others = [
        ". + .",
        ". - .",
        ". * .",
        ". / .",
        ". == (. + [])",
        ".[] += 1",
        ".[] |= empty",
        "del(.[])",
        ".[.[]]",
        ". as [$a, $b] | $a",
        "[.. | numbers]",
        "reduce .[] as $x (0; . + $x)",
        "reduce .[] as $x ({}; . + {\"\\($x)\": $x})",
        "[foreach .[] as $x (0; . + 1; .)]",
        "[.[]?, .[]?] | length",
        "\"\\(.)\\(.)\"",
        ". * 1000000",
        "[.[] | tojson] | add",
        "gsub(\"<[^>]*>|<\"; \"\")",
        "gsub(\"\"; \"a\")",
        "gsub(\"(?<x>.)\"; .x)",
        "[match(\"(((((((((.)))))))))\"; \"g\")]",
        "test(\"(<?){200}<{200}a\")",
        "[range(100000) | try error(\"a\") catch .]",
        "[range(100000) | .[\"abc\"]?]",
        "[limit(100000; repeat(1))]",
        "reduce range(60) as $i (.; [., .]) | length",
        "reduce range(60) as $i (.; [., .]) | . == .",
        "reduce range(60) as $i (.; [., .]) | tojson | length",
        ". as $all | [range(1000) | $all]",
        "[range(1000)] as $n | . as $all | [$n[] | $all] | flatten | length",
    ];
    programs.extend(others.map(str::to_owned));
    programs
}

struct MeasuredRun {
    result: Result<usize, FunctionError>,
    steps: u64,
    elapsed: Duration,
}

fn run(program: &Program, input: &Value) -> MeasuredRun {
    let time = TimeLimit { max: TIME_MAX, clock };
    let allowance = ProgramLimits {
        budget: StepBudget::new(tests::STEPS_MAX, 16 << 20, Some(time)),
        ..tests::allowance()
    };
    let input = input.clone();
    let start = clock();
    let (result, allowance) = program.run(input, allowance);
    let result = result.map(|outputs| outputs.len());
    MeasuredRun {
        elapsed: clock() - start,
        result,
        steps: tests::STEPS_MAX - allowance.budget.steps(),
    }
}

#[test]
fn every_function_ends_in_time_and_charges() {
    let (inputs, mut failures, mut slowest) = (inputs(), Vec::new(), Vec::new());
    for text in programs() {
        let program = Program::compile(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
        for (name, input) in &inputs {
            let is_bad = |run: &MeasuredRun| {
                run.elapsed > TIME_MAX + SLACK || run.elapsed > STEP_MAX * run.steps as u32 + CONSTANT_MAX
            };
            let mut best = run(&program, input);
            for _ in 0..5 {
                // Other work on the processor makes runs longer, so the shortest of several runs counts.
                if is_bad(&best) {
                    let again = run(&program, input);
                    if again.elapsed < best.elapsed {
                        best = again;
                    }
                }
            }
            let MeasuredRun {
                result,
                steps,
                elapsed: taken,
            } = &best;
            let ratio = taken.as_nanos() as f64 / (*steps).max(1) as f64;
            let result = result
                .as_ref()
                .map_err(|fault| fault.message.chars().take(60).collect::<String>());
            let shown = format!("{taken:8.2?} {steps:8} steps {ratio:6.1} ns  {text} of {name}: {result:?}");
            if is_bad(&best) {
                failures.push(shown.clone());
            }
            if *taken > Duration::from_millis(2) {
                slowest.push((ratio, shown));
            }
        }
    }
    slowest.sort_by(|a, b| b.0.total_cmp(&a.0));
    slowest.iter().take(40).for_each(|(_, shown)| eprintln!("{shown}"));
    assert!(
        failures.is_empty(),
        "{} of them:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn long_programs_do_not_use_up_the_stack() {
    let many = |one: &dyn Fn(usize) -> String| (0..4_000).map(one).collect::<Vec<_>>().join(",");
    for text in [
        format!("{{{}}}", many(&|n| format!("\"k{n}\":1"))),
        format!(". as [{}] | 1", many(&|n| format!("$v{n}"))),
        format!(". as {{{}}} | 1", many(&|n| format!("\"k{n}\":$v{n}"))),
        format!(
            "def f({}): 1; f({})",
            many(&|n| format!("a{n}")).replace(',', ";"),
            many(&|_| "1".to_owned()).replace(',', ";")
        ),
    ] {
        // Only the stack matters here, not the result.
        if let Ok(program) = Program::compile(text.as_bytes()) {
            let _ = run(&program, &Value::Null);
        }
    }
}
