//! `tidewire top` on a real pseudo-terminal: what stands on the screen, at which size, after which key; and that the terminal is
//! afterwards as it was.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::json;

use crate::api::Api;
use crate::support::*;

const ESCAPE: char = '\u{1b}';

/// A terminal with the program on it.
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

    /// All that was written, once nobody writes any more.
    fn end(mut self) -> String {
        // Of a terminal that nobody holds any more reading fails.
        drop(self.other);
        let mut buffer = [0; 65536];
        while let Ok(size) = self.own.read(&mut buffer) {
            self.written.extend_from_slice(&buffer[..size]);
        }
        String::from_utf8_lossy(&self.written).into_owned()
    }

    /// The screen once it is so; the program draws it anew at least every second.
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
                "it did not become so:\n{}",
                rows.join("\n")
            );
            let mut buffer = [0; 65536];
            let size = self.own.read(&mut buffer).unwrap();
            self.written.extend_from_slice(&buffer[..size]);
        }
    }
}

/// What a terminal of that size shows: of it, what the program uses.
fn drawn(written: &[u8], (columns, rows): (usize, usize)) -> Vec<String> {
    let text = String::from_utf8_lossy(written);
    let mut grid = vec![vec![' '; columns]; rows];
    let (mut row, mut column) = (0, 0);
    let mut rest = text.chars();
    while let Some(one) = rest.next() {
        match one {
            ESCAPE => {
                assert_eq!(rest.next(), Some('['), "another sequence than those that are used");
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
                        // What was drawn for a larger one is cut.
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
                    other => panic!("another sequence than those that are used: {other:?}"),
                }
            }
            '\r' => column = 0,
            '\n' => row = (row + 1).min(rows - 1),
            one => {
                // In the last column the cursor stays: a line that were longer would show so.
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
fn top_fills_a_terminal_of_any_size_and_leaves_it_as_it_was() {
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
        "keys are read as they are pressed"
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
        "the cursor is seen and the screen is the one from before: {end:?}"
    );
}

#[test]
fn top_says_that_the_server_is_gone_and_goes_on_when_it_is_back() {
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
    // What was known stays, and below it stands why there is nothing newer, and how to end.
    assert!(rows.iter().any(|row| row.starts_with("clients")), "{rows:?}");
    assert!(!rows[22].is_empty() && rows[23].contains("q end"), "{rows:?}");
    println!("{}", rows.join("\n"));
    server.spawn_again();
    server.wait_until_ready();
    screen.wait(|rows| rows[23].contains("every 1 s"));
    screen.press("\u{3}");
    assert!(program.wait().unwrap().success());
}
