//! The start-up box: what a person wants to know when the server has come up. Text from a value; it reads and prints
//! nothing itself.

use crate::config::options::server::DurabilityPolicy;
use std::fmt::Write;

use crate::secret::Secret;

/// All that the box says.
#[derive(Clone, Debug)]
pub struct Summary {
    pub version: String,
    /// What to type to run this program again.
    pub program: String,
    pub node: String,
    pub workers: usize,
    pub listeners: Vec<ListenerSummary>,
    /// How safe messages are, in words.
    pub durability: String,
    /// Who may connect without a user name, in words.
    pub anonymous: String,
    /// `http://127.0.0.1:18083`, unless the API is off.
    pub api_url: Option<String>,
    /// Until its password has been changed.
    pub admin: Option<AdminLogin>,
    /// The users of the demonstration are there; where others than programs of this machine reach them.
    pub demo: Option<Option<String>>,
    /// Where values come from, files first; nothing means all defaults.
    pub config_sources: Vec<String>,
    pub data_dir: String,
}

#[derive(Clone, Debug)]
pub struct ListenerSummary {
    /// `tcp.default`.
    pub label: String,
    /// `mqtt`, `mqtts`, `ws`, `wss`.
    pub scheme: String,
    pub host: String,
    pub port: u16,
    /// Of a WebSocket listener.
    pub path: Option<String>,
}

#[derive(Clone, Debug)]
pub struct AdminLogin {
    pub user_name: String,
    /// Only at the start that made it.
    pub password: Option<Secret>,
    /// The file that holds it.
    pub file: String,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// A frame and colours, for a terminal.
    pub is_terminal: bool,
}

/// What is promised, in a line.
pub fn durability(policy: DurabilityPolicy) -> &'static str {
    match policy {
        DurabilityPolicy::Fsync => "fsync: what is acknowledged is on the disk",
        DurabilityPolicy::Os => "os: what is acknowledged survives the process, not a power cut",
        DurabilityPolicy::Memory => "memory only: sessions and retained messages do not survive a restart",
    }
}

enum Line {
    Field(&'static str, String),
    Command(String),
    Gap,
}

impl ListenerSummary {
    pub fn url(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        format!(
            "{}://{host}:{}{}",
            self.scheme,
            self.port,
            self.path.as_deref().unwrap_or_default()
        )
    }

    /// Where a client on this machine reaches it.
    fn local_host(&self) -> &str {
        match self.host.as_str() {
            "0.0.0.0" | "127.0.0.1" | "::" | "localhost" => "localhost",
            other => other,
        }
    }
}

pub fn render(summary: &Summary, style: Style) -> String {
    let title = format!("tidewire {}", summary.version);
    let lines = lines(summary, style);
    if style.is_terminal {
        framed(&title, &lines)
    } else {
        plain(&title, &lines)
    }
}

fn lines(summary: &Summary, style: Style) -> Vec<Line> {
    let mut lines = Vec::new();
    let plural = if summary.workers == 1 { "" } else { "s" };
    lines.push(Line::Field(
        "node",
        format!("{}, {} worker{plural}", summary.node, summary.workers),
    ));
    for (index, listener) in summary.listeners.iter().enumerate() {
        let label = if index == 0 { "listeners" } else { "" };
        lines.push(Line::Field(label, format!("{:<30}{}", listener.url(), listener.label)));
    }
    if summary.listeners.is_empty() {
        lines.push(Line::Field("listeners", "none".into()));
    }
    lines.push(Line::Field("anonymous", summary.anonymous.clone()));
    lines.push(Line::Field("durability", summary.durability.clone()));
    let config = if summary.config_sources.is_empty() {
        "all defaults".into()
    } else {
        summary.config_sources.join(", ")
    };
    lines.push(Line::Field("config", config));
    lines.push(Line::Field("data", summary.data_dir.clone()));
    // The API is there, too.
    lines.push(Line::Field(
        "console",
        summary.api_url.clone().unwrap_or_else(|| "off".into()),
    ));
    if let Some(admin) = &summary.admin {
        lines.push(Line::Field("login", login(admin, style)));
    }
    if let Some(open) = &summary.demo {
        let users = "sysadmin@, tenant@ and customer@thingsboard.org";
        lines.push(Line::Field(
            "DEMO USERS",
            format!("{users}: EVERYBODY KNOWS THEIR PASSWORDS"),
        ));
        if let Some(open) = open {
            lines.push(Line::Field("", format!("and others reach them at {open}")));
        }
    }
    lines.push(Line::Gap);
    lines.extend(samples(summary).into_iter().map(Line::Command));
    lines
}

/// The password itself only for a person: what is no terminal is a log that others read.
fn login(admin: &AdminLogin, style: Style) -> String {
    let AdminLogin {
        user_name,
        password,
        file,
    } = admin;
    match password {
        Some(password) if style.is_terminal => {
            format!(
                "{user_name} / {}  (also in {file} until it is changed)",
                password.expose()
            )
        }
        _ => format!("{user_name}, password in {file} until it is changed"),
    }
}

/// Commands that work when they are pasted into another terminal on this machine.
fn samples(summary: &Summary) -> Vec<String> {
    let Some(listener) = summary.listeners.iter().find(|listener| listener.scheme == "mqtt") else {
        return Vec::new();
    };
    let host = listener.local_host();
    let mut target = String::new();
    if host != "localhost" {
        let _ = write!(target, " -h {host}");
    }
    if listener.port != 1883 {
        let _ = write!(target, " -p {}", listener.port);
    }
    let program = shell_word(&summary.program);
    vec![
        format!("{program} sub{target} -t 'demo/#' -v"),
        format!("{program} pub{target} -t demo/hello -m 'hello, world'"),
        format!("mosquitto_pub{target} -t demo/hello -m 'hello from mosquitto'"),
    ]
}

fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(is_plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn plain(title: &str, lines: &[Line]) -> String {
    let mut text = format!("{title}\n");
    for line in lines {
        let line = line_text(line);
        let _ = writeln!(text, "{}", format!("  {line}").trim_end());
    }
    text
}

fn framed(title: &str, lines: &[Line]) -> String {
    let texts: Vec<String> = lines.iter().map(line_text).collect();
    let width = texts
        .iter()
        .map(|text| text.chars().count())
        .max()
        .unwrap_or(0)
        .max(title.chars().count() + 2);
    let mut text = format!(
        "╭─ \x1b[1m{title}\x1b[0m {}╮\n",
        "─".repeat(width - title.chars().count() - 1)
    );
    for (line, plain) in lines.iter().zip(&texts) {
        let padding = " ".repeat(width - plain.chars().count());
        let _ = writeln!(text, "│ {}{padding} │", coloured(line, plain));
    }
    let _ = writeln!(text, "╰{}╯", "─".repeat(width + 2));
    text
}

fn line_text(line: &Line) -> String {
    match line {
        Line::Field(label, value) => format!("{label:<12}{value}"),
        Line::Command(command) => format!("$ {command}"),
        Line::Gap => String::new(),
    }
}

fn coloured(line: &Line, plain: &str) -> String {
    match line {
        Line::Field(label, value) => format!("\x1b[2m{label:<12}\x1b[0m{value}"),
        Line::Command(_) => format!("\x1b[36m{plain}\x1b[0m"),
        Line::Gap => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> Summary {
        let listener = |label: &str, scheme: &str, host: &str, port, path: Option<&str>| ListenerSummary {
            label: label.into(),
            scheme: scheme.into(),
            host: host.into(),
            port,
            path: path.map(Into::into),
        };
        Summary {
            version: "0.1.0".into(),
            program: "/opt/my brokers/tidewire".into(),
            node: "pi".into(),
            workers: 2,
            listeners: vec![
                listener("tcp.default", "mqtt", "0.0.0.0", 1883, None),
                listener("wss.lan", "wss", "::1", 8084, Some("/mqtt")),
            ],
            durability: durability(DurabilityPolicy::Memory).into(),
            anonymous: "from this machine only".into(),
            api_url: Some("http://127.0.0.1:18083".into()),
            admin: Some(AdminLogin {
                user_name: "admin".into(),
                password: Some(Secret::new("s3cret")),
                file: "./data/admin-password".into(),
            }),
            demo: None,
            config_sources: vec![],
            data_dir: "./data".into(),
        }
    }

    #[test]
    fn plain_text_says_everything_without_escapes() {
        let expected = "\
tidewire 0.1.0
  node        pi, 2 workers
  listeners   mqtt://0.0.0.0:1883           tcp.default
              wss://[::1]:8084/mqtt         wss.lan
  anonymous   from this machine only
  durability  memory only: sessions and retained messages do not survive a restart
  config      all defaults
  data        ./data
  console     http://127.0.0.1:18083
  login       admin, password in ./data/admin-password until it is changed

  $ '/opt/my brokers/tidewire' sub -t 'demo/#' -v
  $ '/opt/my brokers/tidewire' pub -t demo/hello -m 'hello, world'
  $ mosquitto_pub -t demo/hello -m 'hello from mosquitto'
";
        assert_eq!(render(&summary(), Style::default()), expected);
    }

    #[test]
    fn the_frame_is_straight() {
        let text = render(&summary(), Style { is_terminal: true });
        let without_colours = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[36m"]
            .iter()
            .fold(text, |text, escape| text.replace(escape, ""));
        let widths: Vec<usize> = without_colours.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{without_colours}");
        assert!(!without_colours.contains('\x1b'));
    }

    #[test]
    fn a_person_sees_the_first_password_once() {
        let mut summary = summary();
        let terminal = Style { is_terminal: true };
        assert!(render(&summary, terminal).contains("admin / s3cret  (also in ./data/admin-password"));
        summary.admin.as_mut().unwrap().password = None;
        assert!(render(&summary, terminal).contains("admin, password in ./data/admin-password"));
    }

    #[test]
    fn users_with_known_passwords_are_not_overlooked() {
        let mut summary = summary();
        summary.demo = Some(None);
        let text = render(&summary, Style::default());
        let line = "DEMO USERS  sysadmin@, tenant@ and customer@thingsboard.org: EVERYBODY KNOWS THEIR PASSWORDS\n";
        assert!(text.contains(line) && !text.contains("others reach"), "{text}");
        summary.demo = Some(Some("0.0.0.0:8080".into()));
        let text = render(&summary, Style::default());
        assert!(text.contains("and others reach them at 0.0.0.0:8080\n"), "{text}");
    }

    #[test]
    fn samples_name_what_is_not_usual() {
        let mut summary = summary();
        summary.program = "tidewire".into();
        summary.listeners[0].host = "192.0.2.1".into();
        summary.listeners[0].port = 1884;
        let text = render(&summary, Style::default());
        assert!(
            text.contains("$ tidewire sub -h 192.0.2.1 -p 1884 -t 'demo/#' -v"),
            "{text}"
        );
        summary.listeners.clear();
        summary.admin = None;
        let text = render(&summary, Style::default());
        assert!(!text.contains("$ ") && !text.contains("login"), "{text}");
    }
}
