//! `simulate`: runs seeds and prints the command that reproduces a failure.

use std::process::ExitCode;
use std::time::Instant;

use simulation::trace::Trace;
use simulation::{PlannedDurability, Settings, check, replay};

const USAGE: &str =
    "simulate [--seeds N] [--from SEED] [--seed SEED [--trace]] [--steps N] [--durability none|fsync|os]

  --seeds N       number of seeds to run (200)
  --from SEED     first seed (1)
  --seed SEED     run one seed
  --trace         print every event of that seed
  --steps N       steps per run (500)
  --durability    durability that the node guarantees (fsync)";

struct Arguments {
    seeds: u64,
    from: u64,
    one: Option<u64>,
    is_traced: bool,
    settings: Settings,
}

#[allow(clippy::print_stdout, clippy::print_stderr, reason = "this is the command line")]
fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(wrong) => {
            eprintln!("{wrong}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if let (Some(seed), true) = (arguments.one, arguments.is_traced) {
        let outcome = replay(seed, arguments.settings, Trace::with_lines(true));
        println!("{}", outcome.violation.as_deref().unwrap_or("clean"));
        return ExitCode::from(u8::from(outcome.violation.is_some()));
    }
    let (from, seeds) = arguments
        .one
        .map_or((arguments.from, arguments.seeds), |seed| (seed, 1));
    let begin = Instant::now();
    let mut failures = 0;
    for seed in from..from.saturating_add(seeds) {
        if let Err(failure) = check(seed, arguments.settings) {
            failures += 1;
            println!("{}", failure.report(arguments.settings));
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds from {from}, {failures} failed, {seconds:.1} s, {:.0} seeds/s",
        seeds as f64 / seconds.max(0.001)
    );
    ExitCode::from(u8::from(failures > 0))
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments {
        seeds: 200,
        from: 1,
        one: None,
        is_traced: false,
        settings: Settings::default(),
    };
    while let Some(option) = arguments.next() {
        if option == "--trace" {
            parsed.is_traced = true;
            continue;
        }
        let value = arguments.next().ok_or(format!("{option}: expected a value"))?;
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{option}: {value} is not a number"))
        };
        match option.as_str() {
            "--seeds" => parsed.seeds = number()?,
            "--from" => parsed.from = number()?,
            "--seed" => parsed.one = Some(number()?),
            "--steps" => parsed.settings.steps = number()? as usize,
            "--durability" => {
                parsed.settings.durability = PlannedDurability::ALL
                    .into_iter()
                    .find(|durability| durability.name() == value)
                    .ok_or(format!("--durability: expected none, fsync or os, got {value}"))?;
            }
            _ => return Err(format!("{option}: unknown option")),
        }
    }
    Ok(parsed)
}
