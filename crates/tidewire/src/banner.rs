//! The start-up box: what a person wants to know when the server has come up. Text from a value; it reads and prints
//! nothing itself.

use crate::config::options::server::DurabilityPolicy;
use std::fmt::Write;

use connectors::Secret;

/// All that the box says.
#[derive(Clone, Debug)]
pub struct BannerSummary {
    pub version: String,
    /// Command that runs this program again.
    pub program: String,
    pub node: String,
    pub workers: usize,
    pub listeners: Vec<ListenerSummary>,
    /// How safe messages are, in words.
    pub durability: String,
    /// Which clients may connect without a user name, in words.
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
    /// Path of a WebSocket listener.
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
pub struct BannerStyle {
    /// A frame and colours, for a terminal.
    pub is_terminal: bool,
}

/// Describes the durability policy in one line.
pub fn durability(policy: DurabilityPolicy) -> &'static str {
    match policy {
        DurabilityPolicy::Fsync => "fsync: acknowledged data is on the disk",
        DurabilityPolicy::Os => "os: acknowledged data survives a crash of the process, but not a power failure",
        DurabilityPolicy::Memory => "memory only: sessions and retained messages do not survive a restart",
    }
}

enum BannerLine {
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

pub fn render(summary: &BannerSummary, style: BannerStyle) -> String {
    let title = format!("tidewire {}", summary.version);
    let lines = lines(summary, style);
    if style.is_terminal {
        framed(&title, &lines)
    } else {
        plain(&title, &lines)
    }
}

fn lines(summary: &BannerSummary, style: BannerStyle) -> Vec<BannerLine> {
    let mut lines = Vec::new();
    let plural = if summary.workers == 1 { "" } else { "s" };
    lines.push(BannerLine::Field(
        "node",
        format!("{}, {} worker{plural}", summary.node, summary.workers),
    ));
    for (index, listener) in summary.listeners.iter().enumerate() {
        let label = if index == 0 { "listeners" } else { "" };
        lines.push(BannerLine::Field(
            label,
            format!("{:<30}{}", listener.url(), listener.label),
        ));
    }
    if summary.listeners.is_empty() {
        lines.push(BannerLine::Field("listeners", "none".into()));
    }
    lines.push(BannerLine::Field("anonymous", summary.anonymous.clone()));
    lines.push(BannerLine::Field("durability", summary.durability.clone()));
    let config = if summary.config_sources.is_empty() {
        "all defaults".into()
    } else {
        summary.config_sources.join(", ")
    };
    lines.push(BannerLine::Field("config", config));
    lines.push(BannerLine::Field("data", summary.data_dir.clone()));
    // The API is there, too.
    lines.push(BannerLine::Field(
        "console",
        summary.api_url.clone().unwrap_or_else(|| "off".into()),
    ));
    if let Some(admin) = &summary.admin {
        lines.push(BannerLine::Field("login", login(admin, style)));
    }
    if let Some(open) = &summary.demo {
        let users = "sysadmin@, tenant@ and customer@thingsboard.org";
        lines.push(BannerLine::Field(
            "DEMO USERS",
            format!("{users}: EVERYBODY KNOWS THEIR PASSWORDS"),
        ));
        if let Some(open) = open {
            lines.push(BannerLine::Field("", format!("and others reach them at {open}")));
        }
    }
    lines.push(BannerLine::Gap);
    lines.extend(samples(summary).into_iter().map(BannerLine::Command));
    lines
}

/// Prints the password only on a terminal: other outputs are logs that more people can read.
fn login(admin: &AdminLogin, style: BannerStyle) -> String {
    let AdminLogin {
        user_name,
        password,
        file,
    } = admin;
    match password {
        Some(password) if style.is_terminal => {
            format!(
                "{user_name} / {}  (also in {file}; change it after the first login)",
                password.expose()
            )
        }
        _ => format!("user {user_name}, password in {file} (change it after the first login)"),
    }
}

/// Commands that work when they are pasted into another terminal on this machine.
fn samples(summary: &BannerSummary) -> Vec<String> {
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
    let program = quote_for_shell(&summary.program);
    vec![
        format!("{program} sub{target} -t 'demo/#' -v"),
        format!("{program} pub{target} -t demo/hello -m 'hello, world'"),
        format!("mosquitto_pub{target} -t demo/hello -m 'hello from mosquitto'"),
    ]
}

fn quote_for_shell(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(is_plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn plain(title: &str, lines: &[BannerLine]) -> String {
    let mut text = format!("{title}\n");
    for line in lines {
        let line = line_text(line);
        let _ = writeln!(text, "{}", format!("  {line}").trim_end());
    }
    text
}

fn framed(title: &str, lines: &[BannerLine]) -> String {
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

fn line_text(line: &BannerLine) -> String {
    match line {
        BannerLine::Field(label, value) => format!("{label:<12}{value}"),
        BannerLine::Command(command) => format!("$ {command}"),
        BannerLine::Gap => String::new(),
    }
}

fn coloured(line: &BannerLine, plain: &str) -> String {
    match line {
        BannerLine::Field(label, value) => format!("\x1b[2m{label:<12}\x1b[0m{value}"),
        BannerLine::Command(_) => format!("\x1b[36m{plain}\x1b[0m"),
        BannerLine::Gap => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary() -> BannerSummary {
        let listener = |label: &str, scheme: &str, host: &str, port, path: Option<&str>| ListenerSummary {
            label: label.into(),
            scheme: scheme.into(),
            host: host.into(),
            port,
            path: path.map(Into::into),
        };
        BannerSummary {
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
  login       user admin, password in ./data/admin-password (change it after the first login)

  $ '/opt/my brokers/tidewire' sub -t 'demo/#' -v
  $ '/opt/my brokers/tidewire' pub -t demo/hello -m 'hello, world'
  $ mosquitto_pub -t demo/hello -m 'hello from mosquitto'
";
        assert_eq!(render(&summary(), BannerStyle::default()), expected);
    }

    #[test]
    fn the_frame_is_straight() {
        let text = render(&summary(), BannerStyle { is_terminal: true });
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
        let terminal = BannerStyle { is_terminal: true };
        assert!(render(&summary, terminal).contains("admin / s3cret  (also in ./data/admin-password"));
        summary.admin.as_mut().unwrap().password = None;
        assert!(render(&summary, terminal).contains("admin, password in ./data/admin-password"));
    }

    #[test]
    fn users_with_known_passwords_are_not_overlooked() {
        let mut summary = summary();
        summary.demo = Some(None);
        let text = render(&summary, BannerStyle::default());
        let line = "DEMO USERS  sysadmin@, tenant@ and customer@thingsboard.org: EVERYBODY KNOWS THEIR PASSWORDS\n";
        assert!(text.contains(line) && !text.contains("others reach"), "{text}");
        summary.demo = Some(Some("0.0.0.0:8080".into()));
        let text = render(&summary, BannerStyle::default());
        assert!(text.contains("and others reach them at 0.0.0.0:8080\n"), "{text}");
    }

    #[test]
    fn samples_name_what_is_not_usual() {
        let mut summary = summary();
        summary.program = "tidewire".into();
        summary.listeners[0].host = "192.0.2.1".into();
        summary.listeners[0].port = 1884;
        let text = render(&summary, BannerStyle::default());
        assert!(
            text.contains("$ tidewire sub -h 192.0.2.1 -p 1884 -t 'demo/#' -v"),
            "{text}"
        );
        summary.listeners.clear();
        summary.admin = None;
        let text = render(&summary, BannerStyle::default());
        assert!(!text.contains("$ ") && !text.contains("login"), "{text}");
    }
}
