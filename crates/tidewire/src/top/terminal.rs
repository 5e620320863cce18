//! The terminal of `tidewire top`: single keys, the alternate screen, and a terminal that is restored on drop.
//!
//! The size is read before each drawing. That works without a controlling terminal, and misses no signal.

use std::io::{self, Stdout, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::backend::TermionBackend;
use ratatui::layout::Rect;
use ratatui::termion::event::{Event, Key as Typed};
use ratatui::termion::input::TermRead;
use ratatui::termion::raw::{IntoRawMode, RawTerminal};
use ratatui::termion::screen::{ToAlternateScreen, ToMainScreen};
use ratatui::{Frame, TerminalOptions, Viewport};
use rustix::termios::tcgetwinsize;
use signal_hook::consts::{SIGHUP, SIGTERM};

/// Maximum time to wait for a key before checking whether the process must end.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Keys typed while the server responds.
const TYPED_MAX: usize = 64;
/// Size of a terminal that does not report it.
const SIZE: Rect = Rect::new(0, 0, 80, 24);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TerminalKey {
    Character(char),
    /// F1, F10.
    Function(u8),
    Escape,
    /// Ctrl-C or a signal.
    End,
}

pub struct Terminal {
    screen: ratatui::Terminal<TermionBackend<Stdout>>,
    area: Rect,
    is_ended: Arc<AtomicBool>,
    input: Receiver<io::Result<Event>>,
    /// Restores the terminal on drop.
    _raw: RawTerminal<Stdout>,
}

impl Terminal {
    pub fn open() -> io::Result<Terminal> {
        let is_ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, is_ended.clone())?;
        }
        let area = size();
        let viewport = Viewport::Fixed(area);
        let backend = TermionBackend::new(io::stdout());
        let mut terminal = Terminal {
            screen: ratatui::Terminal::with_options(backend, TerminalOptions { viewport })?,
            area,
            is_ended,
            input: keys()?,
            _raw: io::stdout().into_raw_mode()?,
        };
        write!(io::stdout(), "{ToAlternateScreen}")?;
        terminal.screen.hide_cursor()?;
        Ok(terminal)
    }

    pub fn show(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let now = size();
        if now != self.area {
            self.area = now;
            self.screen.resize(now)?;
        }
        self.screen.draw(draw).map(drop)
    }

    /// Returns the next key, if one is typed in time and before the size changes.
    pub fn key(&self, until: Instant) -> io::Result<Option<TerminalKey>> {
        loop {
            if self.is_ended.load(Ordering::Relaxed) {
                return Ok(Some(TerminalKey::End));
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.input.recv_timeout(left.min(LOOK_EVERY)) {
                Ok(event) => {
                    if let Some(key) = key_of(&event?) {
                        return Ok(Some(key));
                    }
                }
                Err(RecvTimeoutError::Timeout) if left > LOOK_EVERY && size() == self.area => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                // No input is possible any more.
                Err(RecvTimeoutError::Disconnected) => return Ok(Some(TerminalKey::End)),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The terminal is closed.
        let _ = self.screen.show_cursor();
        let _ = write!(io::stdout(), "{ToMainScreen}").and_then(|()| io::stdout().flush());
    }
}

/// Read on a thread of its own, which ends with the process or the terminal.
fn keys() -> io::Result<Receiver<io::Result<Event>>> {
    let (sender, keys) = sync_channel(TYPED_MAX);
    let read = move || {
        for event in io::stdin().events() {
            if sender.send(event).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("keys".into()).spawn(read).map(|_| keys)
}

fn size() -> Rect {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Rect::new(0, 0, size.ws_col, size.ws_row),
        _ => SIZE,
    }
}

fn key_of(event: &Event) -> Option<TerminalKey> {
    match event {
        Event::Key(Typed::Ctrl('c')) => Some(TerminalKey::End),
        Event::Key(Typed::Char(character)) => Some(TerminalKey::Character(*character)),
        Event::Key(Typed::F(number)) => Some(TerminalKey::Function(*number)),
        Event::Key(Typed::Esc) => Some(TerminalKey::Escape),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_terminals_send_and_none_is_made_of_what_is_unknown() {
        let typed = |bytes: &[u8]| -> Vec<TerminalKey> {
            let events = bytes.events().map_while(Result::ok);
            events.filter_map(|event| key_of(&event)).collect()
        };
        let plus = TerminalKey::Character('+');
        assert_eq!(typed(b"++q"), [plus, plus, TerminalKey::Character('q')]);
        assert_eq!(typed(b"\x03"), [TerminalKey::End]);
        assert_eq!(typed(b"\x1b"), [TerminalKey::Escape]);
        assert_eq!(
            typed(b"\x1bOP\x1b[21~"),
            [TerminalKey::Function(1), TerminalKey::Function(10)]
        );
        assert_eq!(typed(b"\x1b[A\x1b[1;5C\x1bx+"), [plus]);
    }
}
