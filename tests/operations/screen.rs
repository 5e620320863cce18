//! Tests `tidewire top` on a real pseudo-terminal: the screen content per size and key, and that the program restores
//! the terminal at the end.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::json;

use crate::support::api::Api;
use crate::support::*;

const ESCAPE: char = '\u{1b}';

/// A pseudo-terminal in which the program runs.
struct Screen {
    own: File,
    other: File,
    written: Vec<u8>,
    size: (usize, usize),
}

impl Screen {
    fn new(columns: u16, rows: u16) -> Screen {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let name = ptsname(&own, Vec::new()).unwrap().into_string().unwrap();
        let other = File::options().read(true).write(true).open(name).unwrap();
        let mut screen = Screen {
            own: own.into(),
            other,
            written: Vec::new(),
            size: (0, 0),
        };
        screen.resize(columns, rows);
        screen
    }

    fn resize(&mut self, columns: u16, rows: u16) {
        self.size = (columns.into(), rows.into());
        let size = Winsize {
            ws_col: columns,
            ws_row: rows,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.own, size).unwrap();
    }

    fn start(&self, server: &Server, key: &str) -> Child {
        let end = || Stdio::from(self.other.try_clone().unwrap());
        Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .args(["top", "--api", &format!("http://{}", server.http())])
            .env("TIDEWIRE_API_TOKEN", key)
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("the program starts")
    }

    fn press(&mut self, keys: &str) {
        self.own.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns all output once the program has closed the terminal.
    fn end(mut self) -> String {
        // Reading fails once no process holds the other end of the terminal.
        drop(self.other);
        let mut buffer = [0; 65536];
        while let Ok(size) = self.own.read(&mut buffer) {
            self.written.extend_from_slice(&buffer[..size]);
        }
        String::from_utf8_lossy(&self.written).into_owned()
    }

    /// Waits until the screen satisfies the condition. The program redraws it at least every second.
    #[track_caller]
    fn wait(&mut self, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            let rows = drawn(&self.written, self.size);
            if is_so(&rows) {
                return rows;
            }
            assert!(
                std::time::Instant::now() < deadline,
                "the screen did not satisfy the condition:
{}",
                rows.join("\n")
            );
            let mut buffer = [0; 65536];
            let size = self.own.read(&mut buffer).unwrap();
            self.written.extend_from_slice(&buffer[..size]);
        }
    }
}

/// Returns the screen of a terminal of this size. It supports only the control sequences that the program uses.
fn drawn(written: &[u8], (columns, rows): (usize, usize)) -> Vec<String> {
    let text = String::from_utf8_lossy(written);
    let mut grid = vec![vec![' '; columns]; rows];
    let (mut row, mut column) = (0, 0);
    let mut rest = text.chars();
    while let Some(one) = rest.next() {
        match one {
            ESCAPE => {
                assert_eq!(rest.next(), Some('['), "unsupported control sequence");
                let mut parameters = String::new();
                let Some(last) = rest.find(|c| {
                    let is_last = c.is_ascii_alphabetic();
                    if !is_last {
                        parameters.push(*c);
                    }
                    is_last
                }) else {
                    break;
                };
                match (last, parameters.as_str()) {
                    ('H', at) => {
                        let mut at = at.split(';').map(|number| number.parse::<usize>().unwrap_or(1) - 1);
                        // Output for a larger terminal is cut.
                        row = at.next().unwrap_or(0).min(rows - 1);
                        column = at.next().unwrap_or(0).min(columns - 1);
                    }
                    ('K', "") => grid[row][column..].fill(' '),
                    ('J', "" | "0") => {
                        grid[row][column..].fill(' ');
                        grid[row + 1..].iter_mut().for_each(|line| line.fill(' '));
                    }
                    ('J', "2") => grid.iter_mut().for_each(|line| line.fill(' ')),
                    ('m', _) | ('h' | 'l', "?1049" | "?25") => {}
                    other => panic!("unsupported control sequence: {other:?}"),
                }
            }
            '\r' => column = 0,
            '\n' => row = (row + 1).min(rows - 1),
            one => {
                // The cursor stays in the last column, so a line that is too long overwrites its last character.
                grid[row][column.min(columns - 1)] = one;
                column = (column + 1).min(columns);
                if column == columns {
                    column = columns - 1;
                }
            }
        }
    }
    grid.iter()
        .map(|line| line.iter().collect::<String>().trim_end().to_owned())
        .collect()
}

#[test]
fn top_fills_any_terminal_size_and_restores_the_terminal() {
    let server = Server::start(&Config::new(""));
    let made = Api::of(&server).ok(
        "POST",
        "/api/v1/api-keys",
        &json!({ "name": "screen", "role": "viewer" }),
    );
    let mut client = server.connect();
    assert_eq!(client.handshake(&Connect::new(V5, "watched")).code, 0);
    let mut screen = Screen::new(80, 24);
    let before = tcgetattr(&screen.other).unwrap();
    let mut program = screen.start(&server, made["secret"].as_str().unwrap());

    let is_shown = |rows: &[String]| {
        rows.iter()
            .any(|row| row.split_whitespace().take(3).eq(["clients", "1", "most"]))
    };
    let rows = screen.wait(|rows| is_shown(rows) && rows[23].contains("every 1 s"));
    println!("{}", rows.join("\n"));
    assert!(rows[0].starts_with("tidewire "), "{rows:?}");
    assert!(rows[23].ends_with("q end  space stop  +/- delay  h help"), "{rows:?}");
    for part in [
        "received",
        "sent",
        "dropped",
        "bytes in",
        "bytes out",
        "LISTENER",
        "NOT DELIVERED",
    ] {
        assert!(
            rows.iter().any(|row| row.starts_with(part)),
            "{part} is not in {rows:?}"
        );
    }
    let raw = tcgetattr(&screen.other).unwrap();
    assert!(
        !raw.local_modes.contains(LocalModes::ICANON),
        "keys take effect without Enter"
    );

    screen.press("h");
    let rows = screen.wait(|rows| rows.iter().any(|row| row.contains("longer, shorter delay")));
    assert!(!is_shown(&rows), "{rows:?}");
    screen.press("h");
    screen.wait(is_shown);
    screen.press("+");
    screen.wait(|rows| rows[23].contains("every 2 s"));
    screen.press(" ");
    screen.wait(|rows| is_shown(rows) && rows[23].contains("stopped"));
    screen.press(" ");
    screen.wait(|rows| rows[23].contains("every 2 s"));

    screen.written.clear();
    screen.resize(200, 60);
    let rows = screen.wait(|rows| rows[59].contains("every 2 s"));
    println!("{}", rows.join("\n"));
    assert!(is_shown(&rows) && rows[0].starts_with("tidewire "), "{rows:?}");
    assert_eq!(rows.iter().filter(|row| row.contains("q end")).count(), 1, "{rows:?}");

    screen.press("q");
    assert!(program.wait().unwrap().success());
    assert_eq!(tcgetattr(&screen.other).unwrap().local_modes, before.local_modes);
    let end = screen.end();
    assert!(
        end.ends_with("\u{1b}[?25h\u{1b}[?1049l"),
        "the cursor is visible and the previous screen is restored: {end:?}"
    );
}

#[test]
fn top_reports_a_lost_server_and_resumes_after_reconnect() {
    let mut server = Server::start(&Config::new(""));
    let made = Api::of(&server).ok(
        "POST",
        "/api/v1/api-keys",
        &json!({ "name": "screen", "role": "viewer" }),
    );
    let mut screen = Screen::new(80, 24);
    let mut program = screen.start(&server, made["secret"].as_str().unwrap());
    screen.wait(|rows| rows[23].contains("every 1 s") && rows.iter().any(|row| row.starts_with("clients")));
    server.kill();
    let rows = screen.wait(|rows| rows[23].contains("no answer"));
    // The last known values stay. Below them stand the reason for missing updates and the key that quits.
    assert!(rows.iter().any(|row| row.starts_with("clients")), "{rows:?}");
    assert!(!rows[22].is_empty() && rows[23].contains("q end"), "{rows:?}");
    println!("{}", rows.join("\n"));
    server.spawn_again();
    server.wait_until_ready();
    screen.wait(|rows| rows[23].contains("every 1 s"));
    screen.press("\u{3}");
    assert!(program.wait().unwrap().success());
}
