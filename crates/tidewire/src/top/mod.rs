//! `tidewire top`: the home page of the console in a terminal, through the API, for use over SSH.
//!
//! `numbers` reads and calculates, `screen` draws with ratatui, and `terminal` handles the terminal. This file
//! contains the command, its keys, and the output for scripts.

mod numbers;
mod screen;
mod terminal;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use self::numbers::NumbersReader;
use self::screen::{Palette, ScreenView};
use self::terminal::{Terminal, TerminalKey};
use crate::client::failure::ClientFailure;
use crate::config::ConfigSources;
use crate::output::{EXIT_USAGE, fail, print};
use crate::remote::{ApiClient, ApiError, args};

/// Steps of the keys `+` and `-`.
const DELAYS_S: [u64; 6] = [1, 2, 5, 10, 30, 60];

/// Maximum time until the first numbers are shown.
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

pub fn run(matches: &ArgMatches, sources: &ConfigSources) -> ExitCode {
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    let is_live = !matches.get_flag("once") && !matches.get_flag("json");
    if is_live && !is_terminal {
        return fail(EXIT_USAGE, &"the output is not a terminal; use --once or --json");
    }
    let result = ApiClient::connect(matches, sources).and_then(|api| {
        let delay = Duration::from_secs(*matches.get_one("delay").expect("it has a default"));
        match is_live {
            true => live(&api, delay),
            false => printed(&api, delay, matches),
        }
    });
    result.unwrap_or_else(|error| error.report())
}

/// Output for scripts and pipes: once, or a line of JSON per interval.
fn printed(api: &ApiClient, delay: Duration, matches: &ArgMatches) -> Result<ExitCode, ApiError> {
    let mut asker = NumbersReader::new(api)?;
    loop {
        thread::sleep(delay);
        let numbers = asker.fetch()?;
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

fn live(api: &ApiClient, delay: Duration) -> Result<ExitCode, ApiError> {
    let mut asker = NumbersReader::new(api)?;
    let mut terminal = Terminal::open().map_err(|error| connection_lost(&error))?;
    let palette = Palette::of_environment();
    let mut view = ScreenView::new(delay);
    let mut due = Instant::now() + delay.min(FIRST);
    loop {
        terminal
            .show(|frame| screen::draw(frame, &view, palette))
            .map_err(|error| connection_lost(&error))?;
        match terminal.key(due).map_err(|error| connection_lost(&error))? {
            Some(key) if press(&mut view, key) => return Ok(ExitCode::SUCCESS),
            Some(_) => continue,
            // The terminal has another size.
            None if Instant::now() < due => continue,
            None => due = Instant::now() + view.delay,
        }
        if !view.is_paused {
            // A server that restarts is asked again.
            match asker.fetch() {
                Ok(numbers) => view.take(numbers),
                Err(error) => view.problem = Some(error.to_string()),
            }
        }
    }
}

/// Returns whether the key ends the program.
fn press(view: &mut ScreenView, key: TerminalKey) -> bool {
    match key {
        TerminalKey::End | TerminalKey::Character('q') | TerminalKey::Function(10) => return true,
        TerminalKey::Character(' ') => view.is_paused = !view.is_paused,
        TerminalKey::Character('+') => view.delay = step(view.delay, 1),
        TerminalKey::Character('-') => view.delay = step(view.delay, -1),
        TerminalKey::Character('r') => view.forget(),
        TerminalKey::Character('h' | '?') | TerminalKey::Function(1) => view.is_help = !view.is_help,
        TerminalKey::Escape => view.is_help = false,
        TerminalKey::Character(_) | TerminalKey::Function(_) => {}
    }
    false
}

/// Returns the next longer or shorter interval.
fn step(delay: Duration, by: isize) -> Duration {
    let at = DELAYS_S.iter().position(|one| *one >= delay.as_secs());
    let at = at.unwrap_or(DELAYS_S.len() - 1).saturating_add_signed(by);
    Duration::from_secs(DELAYS_S[at.min(DELAYS_S.len() - 1)])
}

fn connection_lost(error: &io::Error) -> ApiError {
    ApiError::Unreachable(ClientFailure::ConnectionLost(format!("the terminal: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_htop() {
        let mut view = ScreenView::new(Duration::from_secs(1));
        let mut hit = |key| press(&mut view, key);
        assert!(
            hit(TerminalKey::Function(10))
                && hit(TerminalKey::Character('q'))
                && hit(TerminalKey::End)
                && !hit(TerminalKey::Character('x'))
        );
        assert!(
            !hit(TerminalKey::Character(' ')) && !hit(TerminalKey::Character('+')) && !hit(TerminalKey::Function(1))
        );
        assert!(view.is_paused && view.is_help);
        assert_eq!(view.delay, Duration::from_secs(2));
        assert_eq!(step(Duration::from_secs(60), 1), Duration::from_secs(60));
        assert_eq!(step(Duration::from_secs(1), -1), Duration::from_secs(1));
        assert_eq!(step(Duration::from_secs(3), -1), Duration::from_secs(2));
    }
}
