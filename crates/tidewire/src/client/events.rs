//! Everything that can happen to a client, through one bounded channel.
//!
//! One thread per source: the socket, standard input, signals. A thread waits while the channel is full, so that
//! nothing grows. Each line of standard input needs a credit, so that waiting for acknowledgements stops reading.

use std::io::{self, BufRead, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::Instant;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// A shell reports a program that was ended by a signal as this plus the number of the signal.
const EXIT_SIGNALLED: i32 = 128;
const EVENTS_MAX: usize = 64;
const READ_BYTES: usize = 64 * 1024;
/// Lines that may be read ahead.
const LINE_CREDITS: usize = 64;

#[derive(Debug)]
pub enum ClientEvent {
    /// From connection number `generation`.
    Bytes { generation: u32, bytes: Vec<u8> },
    /// The connection is gone; `None` when the server closed it.
    Closed { generation: u32, error: Option<io::Error> },
    /// A line of standard input without its end.
    Line(Vec<u8>),
    /// No more lines.
    LinesEnd(Option<io::Error>),
    /// A signal asks the program to end.
    Signal,
}

pub enum WaitOutcome {
    Event(ClientEvent),
    /// Nothing is there now, or until the deadline.
    Nothing,
}

pub struct ClientEventQueue {
    sender: SyncSender<ClientEvent>,
    receiver: Receiver<ClientEvent>,
}

impl ClientEventQueue {
    pub fn new() -> ClientEventQueue {
        let (sender, receiver) = sync_channel(EVENTS_MAX);
        ClientEventQueue { sender, receiver }
    }

    pub fn try_next(&self) -> WaitOutcome {
        match self.receiver.try_recv() {
            Ok(event) => WaitOutcome::Event(event),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => WaitOutcome::Nothing,
        }
    }

    pub fn next(&self, deadline: Option<Instant>) -> WaitOutcome {
        match deadline {
            None => self.receiver.recv().map_or(WaitOutcome::Nothing, WaitOutcome::Event),
            Some(deadline) => {
                let timeout = deadline.saturating_duration_since(Instant::now());
                match self.receiver.recv_timeout(timeout) {
                    Ok(event) => WaitOutcome::Event(event),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => WaitOutcome::Nothing,
                }
            }
        }
    }

    /// Reads `socket` until it ends.
    pub fn watch_socket(&self, mut socket: impl Read + Send + 'static, generation: u32) {
        let sender = self.sender.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; READ_BYTES];
            loop {
                let event = match socket.read(&mut buffer) {
                    Ok(0) => ClientEvent::Closed {
                        generation,
                        error: None,
                    },
                    Ok(size) => ClientEvent::Bytes {
                        generation,
                        bytes: buffer[..size].to_vec(),
                    },
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => ClientEvent::Closed {
                        generation,
                        error: Some(error),
                    },
                };
                let is_last = matches!(event, ClientEvent::Closed { .. });
                if sender.send(event).is_err() || is_last {
                    return;
                }
            }
        });
    }

    /// Reads lines of standard input, as many ahead as there are credits. The returned sender gives one credit more.
    pub fn watch_lines(&self) -> SyncSender<()> {
        let (credit, credits) = sync_channel(LINE_CREDITS);
        for _ in 0..LINE_CREDITS {
            let _ = credit.try_send(());
        }
        let sender = self.sender.clone();
        thread::spawn(move || {
            let mut stdin = io::stdin().lock();
            while credits.recv().is_ok() {
                let mut line = Vec::new();
                let event = match stdin.read_until(b'\n', &mut line) {
                    Ok(0) => ClientEvent::LinesEnd(None),
                    Ok(_) => {
                        line.pop_if(|byte| *byte == b'\n');
                        ClientEvent::Line(line)
                    }
                    Err(error) => ClientEvent::LinesEnd(Some(error)),
                };
                let is_last = matches!(event, ClientEvent::LinesEnd(_));
                if sender.send(event).is_err() || is_last {
                    return;
                }
            }
        });
        credit
    }

    /// From here on SIGINT, SIGTERM and SIGHUP are events. The second one ends the program, whatever it is waiting for.
    pub fn watch_signals(&self) -> io::Result<()> {
        let is_second = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, EXIT_SIGNALLED + signal, is_second.clone())?;
            flag::register(signal, is_second.clone())?;
        }
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let sender = self.sender.clone();
        thread::spawn(move || {
            for _ in signals.forever() {
                if sender.send(ClientEvent::Signal).is_err() {
                    return;
                }
            }
        });
        Ok(())
    }
}
