//! The options of an authentication provider or of a source of access rules, while they are collected.
//!
//! Nothing is set before all of them are valid: a provider without one of its options could admit more clients. A part
//! that cannot be translated is an error, and then the whole provider is left out.

use std::time::Duration;

use auth::{Placeholder, Template, TemplateUse};
use toml::{Table, Value};

use super::pem::pem;
use crate::config::units::format_duration;
use crate::import::report::Outcome;
use crate::import::settings::{Setting, duration_ms};
use crate::import::setup::Setup;

/// Range of the option `timeout` of all providers.
const TIMEOUT_MS: (u64, u64) = (10, 60_000);
const POOL_SIZE_MAX: u64 = 256;

pub struct Draft<'a> {
    /// Section of the options, such as `access.http`.
    pub key: String,
    pub from: Setting<'a>,
    template_use: TemplateUse,
    options: Vec<(String, Value)>,
    secrets: Vec<(String, Value)>,
    /// Option, name of the file and contents.
    files: Vec<(&'static str, String, Vec<u8>)>,
}

impl<'a> Draft<'a> {
    pub fn new(key: &str, from: &Setting<'a>, template_use: TemplateUse) -> Draft<'a> {
        Draft {
            key: key.to_owned(),
            from: from.clone(),
            template_use,
            options: Vec::new(),
            secrets: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Sets all options.
    pub fn install(self, setup: &mut Setup) {
        let item = &self.from.path;
        for (option, value) in self.options {
            setup.set(&format!("{}.{option}", self.key), item, value);
        }
        for (option, value) in self.secrets {
            setup.set_secret(&format!("{}.{option}", self.key), item, value);
        }
        for (option, name, contents) in self.files {
            let path = setup.file(&name, contents);
            setup.set(&format!("{}.{option}", self.key), item, path);
        }
    }

    pub fn set(&mut self, option: &str, value: impl Into<Value>) {
        self.options.push((option.to_owned(), value.into()));
    }

    /// Sets an option and notes the setting that it comes from.
    pub fn put(&mut self, setting: &Setting<'_>, option: &str, value: impl Into<Value>) {
        self.set(option, value);
        self.used(setting, option);
    }

    pub fn used(&self, setting: &Setting<'_>, option: &str) {
        setting.imported(&self.to(option));
    }

    /// Name of an option in the report.
    pub fn to(&self, option: &str) -> String {
        format!("{}.{option}", self.key)
    }

    /// Returns the text of a setting that may be missing or empty.
    pub fn optional(&self, theirs: &str) -> Result<Option<&'a str>, String> {
        let setting = self.from.get(theirs);
        match setting.text() {
            Some(text) => Ok(Some(text).filter(|text| !text.is_empty())),
            None if setting.exists() => Err(format!("its {theirs} is not text")),
            None => Ok(None),
        }
    }

    pub fn required(&self, theirs: &str) -> Result<&'a str, String> {
        self.optional(theirs)?.ok_or_else(|| format!("its {theirs} is missing"))
    }

    /// Copies a text. Returns whether it exists.
    pub fn text(&mut self, theirs: &str, option: &str) -> Result<bool, String> {
        let Some(text) = self.optional(theirs)? else {
            self.used(&self.from.get(theirs), option);
            return Ok(false);
        };
        self.put(&self.from.get(theirs), option, text);
        Ok(true)
    }

    /// Copies a password or token.
    pub fn secret(&mut self, theirs: &str, option: &str) -> Result<(), String> {
        if let Some(text) = self.optional(theirs)? {
            self.secrets.push((option.to_owned(), text.into()));
        }
        self.used(&self.from.get(theirs), option);
        Ok(())
    }

    /// Copies a text with placeholders, which must not be empty.
    pub fn template(&mut self, theirs: &str, option: &str) -> Result<(), String> {
        let text = self.required(theirs)?;
        self.check_template(theirs, text)?;
        self.put(&self.from.get(theirs), option, text);
        Ok(())
    }

    /// Copies an object whose values have placeholders. Returns the number of its entries.
    pub fn templates(&mut self, setting: &Setting<'a>, option: &str) -> Result<usize, String> {
        let table = self.template_table(setting)?;
        let length = table.len();
        if length > 0 {
            self.set(option, table);
        }
        self.used(setting, option);
        Ok(length)
    }

    fn template_table(&self, setting: &Setting<'a>) -> Result<Table, String> {
        let name = setting.path.rsplit('.').next().unwrap_or_default().to_owned();
        if setting.exists() && !setting.is_object() {
            return Err(format!("its {name} is not an object"));
        }
        let mut table = Table::new();
        for (key, value) in setting.entries() {
            let text = value
                .text()
                .ok_or_else(|| format!("the value of {key} in its {name} is not text"))?;
            if key.is_empty() || key.contains("${") {
                return Err(format!("a name in its {name} is empty or has a placeholder"));
            }
            self.check_template(&format!("{name}.{key}"), text)?;
            table.insert(key.to_owned(), text.into());
        }
        Ok(table)
    }

    /// Sets a table of secrets with placeholders.
    pub fn secret_templates(&mut self, entries: &[(&'a str, Setting<'a>)], option: &str) -> Result<(), String> {
        let mut table = Table::new();
        for (name, value) in entries {
            let text = value
                .text()
                .ok_or_else(|| format!("the value of {name} in its {option} is not text"))?;
            self.check_template(&format!("{option}.{name}"), text)?;
            table.insert((*name).to_owned(), text.into());
            self.used(value, option);
        }
        if !table.is_empty() {
            self.secrets.push((option.to_owned(), table.into()));
        }
        Ok(())
    }

    /// The error names placeholders that tidewire does not have. It does not quote the text.
    pub fn check_template(&self, name: &str, text: &str) -> Result<(), String> {
        let template = Template::parse_for(self.template_use, text).map_err(|error| format!("{name}: {error}"))?;
        let mut placeholders = template.placeholders();
        match placeholders.find(|one| matches!(one, Placeholder::ClientAttribute(_))) {
            Some(attribute) => Err(format!("{name}: {attribute} has no value before the login")),
            None => Ok(()),
        }
    }

    /// Copies the time limit of a question. A value out of range becomes the nearest one.
    pub fn timeout(&mut self, theirs: &str) -> Result<(), String> {
        let setting = self.from.get(theirs);
        if !setting.exists() {
            return Ok(());
        }
        let ms = setting.text().and_then(duration_ms);
        let ms = ms.ok_or_else(|| format!("its {theirs} is not a duration"))?;
        let possible = ms.clamp(TIMEOUT_MS.0, TIMEOUT_MS.1);
        let text = format_duration(Duration::from_millis(possible));
        self.set("timeout", text.as_str());
        match possible == ms {
            true => self.used(&setting, "timeout"),
            false => setting.changed(&self.to("timeout"), &format!("{text}, the nearest possible value")),
        }
        Ok(())
    }

    /// Copies a number. The error names the range.
    pub fn number(&mut self, setting: &Setting<'_>, option: &str, min: u64, max: u64) -> Result<(), String> {
        if !setting.exists() {
            return Ok(());
        }
        let name = setting.path.rsplit('.').next().unwrap_or_default();
        let number = setting.number().filter(|number| (min..=max).contains(number));
        let number = number.ok_or_else(|| format!("its {name} is not a number from {min} to {max}"))?;
        let number = i64::try_from(number).map_err(|_| format!("its {name} is too large"))?;
        self.put(setting, option, number);
        Ok(())
    }

    /// Copies the number of connections of a database.
    pub fn pool_size(&mut self) -> Result<(), String> {
        let setting = self.from.get("pool_size");
        match setting.number() {
            Some(number) if number > POOL_SIZE_MAX => {
                self.set("pool_size", POOL_SIZE_MAX as i64);
                setting.changed(
                    &self.to("pool_size"),
                    &format!("{POOL_SIZE_MAX}, the largest possible value"),
                );
                Ok(())
            }
            _ => self.number(&setting, "pool_size", 1, POOL_SIZE_MAX),
        }
    }

    /// Copies host and port of one server.
    pub fn server(&mut self, default_port: u16) -> Result<(), String> {
        let text = self.required("server")?;
        let (host, port) = host_and_port(text, default_port)?;
        let setting = self.from.get("server");
        self.put(&setting, "host", host);
        self.set("port", i64::from(port));
        Ok(())
    }

    /// Copies whether connections use TLS, and its settings.
    pub fn tls(&mut self) -> Result<bool, String> {
        let enable = self.from.get("ssl").get("enable");
        let is_on = enable.flag(false)?;
        self.put(&enable, "tls", is_on);
        match is_on {
            true => self.certificates()?,
            false => self.from.get("ssl").refuse("TLS is off"),
        }
        Ok(is_on)
    }

    /// Copies the certificates, and whether the server's certificate is verified.
    pub fn certificates(&mut self) -> Result<(), String> {
        let ssl = self.from.get("ssl");
        let mut has = [false; 3];
        for (index, (theirs, option)) in [
            ("cacertfile", "ca_file"),
            ("certfile", "cert_file"),
            ("keyfile", "key_file"),
        ]
        .into_iter()
        .enumerate()
        {
            let setting = ssl.get(theirs);
            let Some(text) = setting.filled() else {
                self.used(&setting, option);
                continue;
            };
            has[index] = true;
            let contents = pem(text).map_err(|problem| format!("ssl.{theirs}: {problem}"))?;
            let name = format!("tls/{}-{option}.pem", self.key.replace('.', "-"));
            self.files.push((option, name, contents));
            self.used(&setting, option);
        }
        if has[1] != has[2] {
            return Err("its client certificate or the key of it is missing".to_owned());
        }
        if ssl.get("password").filled().is_some() {
            return Err("its private key is encrypted; decrypt the key file and set cert_file and key_file".to_owned());
        }
        self.verification(&ssl)?;
        ssl.get("enable").imported(&self.key);
        ssl.get("server_name_indication")
            .refuse("tidewire verifies the host name of the server");
        ssl.refuse("tidewire chooses the settings of TLS itself");
        Ok(())
    }

    fn verification(&mut self, ssl: &Setting<'_>) -> Result<(), String> {
        let verify = ssl.get("verify");
        match verify.text() {
            Some("verify_peer") => self.put(&verify, "verify", true),
            Some("verify_none") => self.put(&verify, "verify", false),
            None if !verify.exists() => verify.note_missing(Outcome::Changed {
                to: self.to("verify"),
                because: "the certificate of the server is verified, which is not the default of EMQX 5".to_owned(),
            }),
            _ => return Err("ssl.verify: its value is neither verify_peer nor verify_none".to_owned()),
        }
        Ok(())
    }

    /// Adds a file, such as a public key.
    pub fn file(&mut self, option: &'static str, name: &str, contents: Vec<u8>) {
        self.files.push((option, name.to_owned(), contents));
    }
}

/// Splits `host:port`, `[::1]:port` or `host`.
pub fn host_and_port(text: &str, default_port: u16) -> Result<(&str, u16), String> {
    let text = text.trim();
    if text.contains(',') {
        return Err("it has several servers".to_owned());
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("its server has no `]`")?;
            (host, after.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            // An IPv6 address without a port.
            Some((_, after)) if after.contains(':') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().map_err(|_| "the port of its server is not a number")?,
        None => default_port,
    };
    match host.is_empty() || host.contains(char::is_whitespace) || port == 0 {
        true => Err("its server is not a host and a port".to_owned()),
        false => Ok((host, port)),
    }
}
