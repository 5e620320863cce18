//! `tidewire rule tail`: what a rule sees and does, as it happens.

use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::Value;

use super::{named_subcommand, text};
use crate::client::failure::ClientFailure;
use crate::output::print;
use crate::remote::{ApiClient, ApiError};

pub fn command() -> Command {
    named_subcommand("tail", "ID", "Watch what a rule sees, puts out and fails on")
        .after_help(
            "Shows a sample, and how many were left out. Ends with Ctrl-C, after --count, or when the rule is deleted.",
        )
        .arg(
            Arg::new("per-second")
                .long("per-second")
                .value_name("COUNT")
                .value_parser(value_parser!(u32).range(1..=1000))
                .default_value("50")
                .help("How many to show a second at most"),
        )
        .arg(
            Arg::new("count")
                .long("count")
                .value_name("COUNT")
                .value_parser(value_parser!(u64).range(1..))
                .help("End after so many"),
        )
        .arg(
            Arg::new("errors")
                .long("errors")
                .action(ArgAction::SetTrue)
                .help("Only those on which the rule fails"),
        )
}

pub fn run(api: &ApiClient, path: &str, own: &ArgMatches) -> Result<ExitCode, ApiError> {
    // A normal request reports an unknown rule; a rejected upgrade has no text.
    api.get(path)?;
    let per_second: &u32 = own.get_one("per-second").expect("it has a default");
    let mut socket = api.listen(&format!("{path}/tail?per_second={per_second}"))?;
    let mut view = TailView::new(own);
    let mut bytes = Vec::new();
    while !view.is_over {
        let is_open = socket
            .read(&mut bytes)
            .map_err(|error| connection_lost(&error.to_string()))?;
        let used = view.take(&bytes)?;
        bytes.drain(..used);
        if !is_open && !view.is_over {
            return Err(connection_lost("the server has closed it"));
        }
    }
    socket.close();
    Ok(ExitCode::SUCCESS)
}

fn connection_lost(reason: &str) -> ApiError {
    ApiError::Unreachable(ClientFailure::ConnectionLost(reason.to_owned()))
}

struct TailView<'a> {
    own: &'a ArgMatches,
    left: Option<u64>,
    omitted: u64,
    is_over: bool,
}

impl TailView<'_> {
    fn new(own: &ArgMatches) -> TailView<'_> {
        TailView {
            own,
            left: own.get_one("count").copied(),
            omitted: 0,
            is_over: false,
        }
    }

    /// Shows the frames that are whole. Returns how many bytes they had.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, ApiError> {
        let mut frames = serde_json::Deserializer::from_slice(bytes).into_iter::<Value>();
        let mut used = 0;
        while !self.is_over {
            match frames.next() {
                Some(Ok(frame)) => self.frame(&frame),
                Some(Err(error)) if error.is_eof() => break,
                Some(Err(error)) => {
                    return Err(ApiError::Unreachable(ClientFailure::Protocol(format!(
                        "the tail is not JSON: {error}"
                    ))));
                }
                None => break,
            }
            used = frames.byte_offset();
        }
        Ok(used)
    }

    fn frame(&mut self, frame: &Value) {
        let is_sample = text(frame, "type") == "sample";
        if is_sample {
            self.omitted += frame["omitted"].as_u64().unwrap_or(0);
        }
        if is_sample && self.own.get_flag("errors") && frame["error"].is_null() {
            return;
        }
        if self.own.get_flag("json") {
            print(&format!("{frame}\n"));
        } else {
            print(&self.shown(frame));
        }
        if is_sample && let Some(left) = &mut self.left {
            *left -= 1;
            self.is_over = *left == 0;
        }
        self.is_over |= text(frame, "type") == "end";
    }

    fn shown(&mut self, frame: &Value) -> String {
        match text(frame, "type") {
            "begin" => format!("watching rule {}; Ctrl-C ends it\n", text(frame, "rule")),
            "sample" => self.sample(frame),
            "end" => format!("the end: {}\n", text(frame, "reason")),
            _ => String::new(),
        }
    }

    fn sample(&mut self, frame: &Value) -> String {
        let mut shown = String::new();
        if self.omitted > 0 {
            shown.push_str(&format!("… {} not shown\n", self.omitted));
            self.omitted = 0;
        }
        shown.push_str(&head(frame));
        let outputs = frame["outputs"].as_array().into_iter().flatten();
        let before = shown.len();
        outputs.for_each(|output| shown.push_str(&format!("  → {output}\n")));
        match frame["error"].as_str() {
            Some(error) => shown.push_str(&format!("  ✗ {error}\n")),
            None if shown.len() == before => shown.push_str("  – no output\n"),
            None => {}
        }
        shown
    }
}

/// When, what, from whom, with which payload; of an event without a topic all that there is.
fn head(frame: &Value) -> String {
    let input = &frame["input"];
    let time = jiff::Timestamp::from_millisecond(frame["at_unix_ms"].as_i64().unwrap_or(0)).unwrap_or_default();
    let time = time.strftime("%H:%M:%S%.3f");
    let from = match text(input, "clientid") {
        "" => String::new(),
        client => format!(" from {client}"),
    };
    match (text(input, "topic"), &input["payload"]) {
        ("", _) => format!("{time}  {}{from}  {input}\n", text(input, "event")),
        (topic, Value::String(payload)) => format!("{time}  {topic}{from}  {payload}\n"),
        (topic, Value::Null) => format!("{time}  {topic}{from}\n"),
        (topic, payload) => format!("{time}  {topic}{from}  {payload}\n"),
    }
}
