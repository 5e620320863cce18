//! `tidewire top`: the console's home page in a terminal, over the API, for whoever is on the machine by SSH.
//!
//! `numbers` asks and reckons, `screen` draws what is to be seen with ratatui, `terminal` is where; this file is the command, its keys, and
//! what scripts get instead of a screen.

mod numbers;
mod screen;
mod terminal;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use self::numbers::Asker;
use self::screen::{Palette, View};
use self::terminal::{Key, Terminal};
use crate::client::failure::Failure;
use crate::config::Sources;
use crate::output::{EXIT_USAGE, fail, print};
use crate::remote::{Api, ApiError, args};

/// Steps of `+` and `-`.
const DELAYS_S: [u64; 6] = [1, 2, 5, 10, 30, 60];

/// When the first numbers are there at the latest.
const FIRST: Duration = Duration::from_secs(1);

pub fn command() -> Command {
    Command::new("top")
        .about("The numbers of a running server, live")
        .after_help("Keys: q or F10 ends, space stops and goes on, + and - change the delay, r forgets the charts, h or F1 helps.")
        .args(args())
        .arg(
            Arg::new("delay")
                .long("delay")
                .short('d')
                .value_name("SECONDS")
                .value_parser(value_parser!(u64).range(1..=3600))
                .default_value("1")
                .help("Ask every so many seconds"),
        )
        .arg(
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Print the numbers of one --delay and end; with --json for scripts"),
        )
}

pub fn run(matches: &ArgMatches, sources: &Sources) -> ExitCode {
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    let is_live = !matches.get_flag("once") && !matches.get_flag("json");
    if is_live && !is_terminal {
        return fail(EXIT_USAGE, &"this is no terminal; --once or --json print the numbers");
    }
    let result = Api::connect(matches, sources).and_then(|api| {
        let delay = Duration::from_secs(*matches.get_one("delay").expect("it has a default"));
        match is_live {
            true => live(&api, delay),
            false => printed(&api, delay, matches),
        }
    });
    result.unwrap_or_else(|error| error.report())
}

/// For scripts and pipes: once, or a line of JSON after every delay.
fn printed(api: &Api, delay: Duration, matches: &ArgMatches) -> Result<ExitCode, ApiError> {
    let mut asker = Asker::new(api)?;
    loop {
        thread::sleep(delay);
        let numbers = asker.ask()?;
        let text = match matches.get_flag("json") {
            true => format!("{}\n", numbers.to_json()),
            false => screen::plain(&numbers),
        };
        let code = print(&text);
        if matches.get_flag("once") || code != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
}

fn live(api: &Api, delay: Duration) -> Result<ExitCode, ApiError> {
    let mut asker = Asker::new(api)?;
    let mut terminal = Terminal::open().map_err(|error| lost(&error))?;
    let palette = Palette::of_environment();
    let mut view = View::new(delay);
    let mut due = Instant::now() + delay.min(FIRST);
    loop {
        terminal
            .show(|frame| screen::draw(frame, &view, palette))
            .map_err(|error| lost(&error))?;
        match terminal.key(due).map_err(|error| lost(&error))? {
            Some(key) if press(&mut view, key) => return Ok(ExitCode::SUCCESS),
            Some(_) => continue,
            // It has another size.
            None if Instant::now() < due => continue,
            None => due = Instant::now() + view.delay,
        }
        if !view.is_paused {
            // A server that restarts is asked again.
            match asker.ask() {
                Ok(numbers) => view.take(numbers),
                Err(error) => view.problem = Some(error.to_string()),
            }
        }
    }
}

/// Whether it is the end.
fn press(view: &mut View, key: Key) -> bool {
    match key {
        Key::End | Key::Character('q') | Key::Function(10) => return true,
        Key::Character(' ') => view.is_paused = !view.is_paused,
        Key::Character('+') => view.delay = step(view.delay, 1),
        Key::Character('-') => view.delay = step(view.delay, -1),
        Key::Character('r') => view.forget(),
        Key::Character('h' | '?') | Key::Function(1) => view.is_help = !view.is_help,
        Key::Escape => view.is_help = false,
        Key::Character(_) | Key::Function(_) => {}
    }
    false
}

/// The next longer or shorter delay.
fn step(delay: Duration, by: isize) -> Duration {
    let at = DELAYS_S.iter().position(|one| *one >= delay.as_secs());
    let at = at.unwrap_or(DELAYS_S.len() - 1).saturating_add_signed(by);
    Duration::from_secs(DELAYS_S[at.min(DELAYS_S.len() - 1)])
}

fn lost(error: &io::Error) -> ApiError {
    ApiError::Unreachable(Failure::Lost(format!("the terminal: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_htop() {
        let mut view = View::new(Duration::from_secs(1));
        let mut hit = |key| press(&mut view, key);
        assert!(hit(Key::Function(10)) && hit(Key::Character('q')) && hit(Key::End) && !hit(Key::Character('x')));
        assert!(!hit(Key::Character(' ')) && !hit(Key::Character('+')) && !hit(Key::Function(1)));
        assert!(view.is_paused && view.is_help);
        assert_eq!(view.delay, Duration::from_secs(2));
        assert_eq!(step(Duration::from_secs(60), 1), Duration::from_secs(60));
        assert_eq!(step(Duration::from_secs(1), -1), Duration::from_secs(1));
        assert_eq!(step(Duration::from_secs(3), -1), Duration::from_secs(2));
    }
}
