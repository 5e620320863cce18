//! The terminal of `tidewire top`: keys as they are pressed, a screen of its own, and everything as it was when it is dropped.
//!
//! How large it is, is asked of the output before every drawing: that holds without a controlling terminal, too, and no signal is missed.

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

/// How long a key is waited for before it is looked whether the process is to end.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Keys that were typed while the server was asked.
const TYPED_MAX: usize = 64;
/// Of a terminal that does not say.
const SIZE: Rect = Rect::new(0, 0, 80, 24);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Character(char),
    /// F1, F10.
    Function(u8),
    Escape,
    /// Ctrl-C, or the process was told to end.
    End,
}

pub struct Terminal {
    screen: ratatui::Terminal<TermionBackend<Stdout>>,
    area: Rect,
    is_ended: Arc<AtomicBool>,
    typed: Receiver<io::Result<Event>>,
    /// Puts back what it was when it is dropped.
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
            typed: keys()?,
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

    /// The next key, if there is one in time and before the terminal has another size.
    pub fn key(&self, until: Instant) -> io::Result<Option<Key>> {
        loop {
            if self.is_ended.load(Ordering::Relaxed) {
                return Ok(Some(Key::End));
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.typed.recv_timeout(left.min(LOOK_EVERY)) {
                Ok(event) => {
                    if let Some(key) = key_of(&event?) {
                        return Ok(Some(key));
                    }
                }
                Err(RecvTimeoutError::Timeout) if left > LOOK_EVERY && size() == self.area => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                // Nobody can type any more.
                Err(RecvTimeoutError::Disconnected) => return Ok(Some(Key::End)),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Nobody is left to tell.
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

fn key_of(event: &Event) -> Option<Key> {
    match event {
        Event::Key(Typed::Ctrl('c')) => Some(Key::End),
        Event::Key(Typed::Char(character)) => Some(Key::Character(*character)),
        Event::Key(Typed::F(number)) => Some(Key::Function(*number)),
        Event::Key(Typed::Esc) => Some(Key::Escape),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_terminals_send_and_none_is_made_of_what_is_unknown() {
        let typed = |bytes: &[u8]| -> Vec<Key> {
            let events = bytes.events().map_while(Result::ok);
            events.filter_map(|event| key_of(&event)).collect()
        };
        let plus = Key::Character('+');
        assert_eq!(typed(b"++q"), [plus, plus, Key::Character('q')]);
        assert_eq!(typed(b"\x03"), [Key::End]);
        assert_eq!(typed(b"\x1b"), [Key::Escape]);
        assert_eq!(typed(b"\x1bOP\x1b[21~"), [Key::Function(1), Key::Function(10)]);
        assert_eq!(typed(b"\x1b[A\x1b[1;5C\x1bx+"), [plus]);
    }
}
