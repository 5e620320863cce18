//! Devices from a table: CSV in the request, and what each of its columns is. A line is one device; a line that cannot be is an error of
//! its own, and the others are saved.

use std::iter::Peekable;
use std::str::Chars;

use axum::Json;
use devices::Kept;
use platform::decode::{Limits, attributes};
use platform::ids::EntityId;
use platform::model::{CredentialsType, Device, DeviceCredentials, MqttBasic, Scope};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::call::Call;
use super::devices::{follow, prepare};
use super::failure::Failure;
use super::operation::{Body, NoQuery, Outcome, post};
use super::values::typed;
use super::world::full;
use crate::endpoint::Endpoint;
use crate::guard::Who;

/// Values that are on their way to the log at once.
const KEPT_MAX: usize = 1000;
/// Lines whose errors are told; all are counted.
const ERRORS_TOLD_MAX: usize = 10_000;

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        post(
            "/api/device/bulk_import",
            "import_devices",
            Who::TENANT_ADMIN,
            import_devices,
        )
        .tag("Devices")
        .says(
            "Create and change many devices",
            "`file` is CSV, `mapping.columns` says what each column is: NAME, TYPE, LABEL, DESCRIPTION, IS_GATEWAY, ACCESS_TOKEN, X509, \
             MQTT_CLIENT_ID, MQTT_USER_NAME, MQTT_PASSWORD, or SHARED_ATTRIBUTE, SERVER_ATTRIBUTE and TIMESERIES with a `key`; \
             `mapping.delimiter`, `mapping.header`. Devices are found by name. Attributes and time series of those that were there are \
             saved with `mapping.update` only. Empty values change nothing.",
        )
        .returns_json("How many were created, updated and refused; and why, with the number of the line."),
    ]
}

#[derive(Deserialize)]
struct Import {
    file: String,
    mapping: Mapping,
}

#[derive(Deserialize)]
struct Mapping {
    columns: Vec<Column>,
    #[serde(default = "comma")]
    delimiter: char,
    #[serde(default)]
    update: bool,
    #[serde(default)]
    header: bool,
}

fn comma() -> char {
    ','
}

#[derive(Deserialize)]
struct Column {
    #[serde(rename = "type")]
    kind: ColumnKind,
    #[serde(default)]
    key: Option<String>,
}

/// As ThingsBoard's `BulkImportColumnType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum ColumnKind {
    Name,
    Type,
    Label,
    Description,
    IsGateway,
    AccessToken,
    X509,
    MqttClientId,
    MqttUserName,
    MqttPassword,
    /// What makes it a device of LwM2M.
    Lwm2mClientEndpoint,
    SharedAttribute,
    ServerAttribute,
    Timeseries,
    /// Details of LwM2M, columns of edges.
    #[serde(other)]
    Other,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Imported {
    created: usize,
    updated: usize,
    errors: usize,
    errors_list: Vec<String>,
}

impl Imported {
    fn refuse(&mut self, line: usize, why: &Failure) {
        self.errors += 1;
        if self.errors_list.len() < ERRORS_TOLD_MAX {
            self.errors_list.push(format!("Line {line}: {}", why.message()));
        }
    }
}

fn import_devices(call: &Call, (): (), _: NoQuery, Body(import): Body<Import>) -> Outcome<Imported> {
    let Import { file, mapping } = import;
    let is_quote_or_end = ['"', '\r', '\n'].contains(&mapping.delimiter);
    if is_quote_or_end {
        return Err(Failure::bad_request(
            "The delimiter can be no quote and no end of a line",
        ));
    }
    let mut imported = Imported::default();
    let mut values = Vec::new();
    let rows = Rows::new(&file, mapping.delimiter, mapping.columns.len() + 1);
    for (index, row) in rows.enumerate().skip(usize::from(mapping.header)) {
        let line = index + 1;
        match import_row(call, &mapping, &row) {
            Ok((is_new, kept)) => {
                *(if is_new {
                    &mut imported.created
                } else {
                    &mut imported.updated
                }) += 1;
                values.extend(kept.into_iter().map(|kept| (line, kept)));
            }
            Err(failure) => imported.refuse(line, &failure),
        }
        if values.len() >= KEPT_MAX {
            wait(&mut values, &mut imported);
        }
    }
    wait(&mut values, &mut imported);
    Ok(Json(imported))
}

/// Together, since the log syncs many at once.
fn wait(values: &mut Vec<(usize, Kept)>, imported: &mut Imported) {
    for (line, kept) in values.drain(..) {
        if let Err(error) = kept.wait() {
            imported.refuse(line, &full(error));
        }
    }
}

/// Whether the device is new, and what is on its way to the log.
fn import_row(call: &Call, mapping: &Mapping, row: &[String]) -> Result<(bool, Vec<Kept>), Failure> {
    if row.len() > mapping.columns.len() {
        let text = format!("more values than the {} columns", mapping.columns.len());
        return Err(Failure::bad_request(text));
    }
    let columns = mapping.columns.iter().zip(row);
    let fields = Fields(columns.filter(|(_, value)| !value.is_empty()).collect());
    let (is_new, device) = save_device(call, &fields)?;
    let mut kept = Vec::new();
    if is_new || mapping.update {
        let entity = device.id.unwrap_or_default().entity();
        kept.extend(save_attributes(
            call,
            entity,
            Scope::SharedScope,
            &fields.values(ColumnKind::SharedAttribute),
        )?);
        kept.extend(save_attributes(
            call,
            entity,
            Scope::ServerScope,
            &fields.values(ColumnKind::ServerAttribute),
        )?);
        let points = fields.values(ColumnKind::Timeseries);
        if !points.is_empty() {
            kept.push(
                call.world
                    .keep_telemetry(entity, json!(points).to_string().as_bytes(), call.now_ms)?,
            );
        }
    }
    Ok((is_new, kept))
}

fn save_attributes(
    call: &Call,
    entity: EntityId,
    scope: Scope,
    values: &Map<String, Value>,
) -> Result<Option<Kept>, Failure> {
    if values.is_empty() {
        return Ok(None);
    }
    let texts = json!(values).to_string();
    let values = attributes(texts.as_bytes(), &Limits::default());
    let values = values.map_err(|error| Failure::bad_request(error.to_string()))?;
    let typed = values.iter().map(|value| (&*value.key, typed(&value.value)));
    let body = Value::Object(typed.map(|(key, value)| (key.to_owned(), value)).collect()).to_string();
    let kept = call
        .world
        .keep_attributes((entity, scope), body.as_bytes(), call.now_ms);
    kept.map(Some)
}

/// Of one line, those that are not empty.
struct Fields<'a>(Vec<(&'a Column, &'a String)>);

impl Fields<'_> {
    fn get(&self, kind: ColumnKind) -> Option<&str> {
        let mut found = self.0.iter().filter(|(column, _)| column.kind == kind);
        found.next_back().map(|(_, value)| value.as_str())
    }

    /// By their keys. A table has texts only: numbers among them are read as devices' are.
    fn values(&self, kind: ColumnKind) -> Map<String, Value> {
        let of_kind = self.0.iter().filter(|(column, _)| column.kind == kind);
        let with_key = of_kind.filter_map(|(column, value)| {
            let key = column.key.as_ref().filter(|key| !key.is_empty())?;
            let value = match value.to_ascii_lowercase().as_str() {
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                _ => Value::String((*value).clone()),
            };
            Some((key.clone(), value))
        });
        with_key.collect()
    }

    /// `None`: a new device gets a token by chance, another one keeps what it has.
    fn credentials(&self) -> Option<DeviceCredentials> {
        let text = |kind| self.get(kind).map(str::to_owned);
        let of_type = |credentials_type| DeviceCredentials {
            credentials_type,
            ..DeviceCredentials::default()
        };
        if self.get(ColumnKind::Lwm2mClientEndpoint).is_some() {
            return Some(of_type(CredentialsType::Lwm2mCredentials));
        }
        if let Some(certificate) = text(ColumnKind::X509) {
            return Some(DeviceCredentials {
                credentials_value: Some(certificate),
                ..of_type(CredentialsType::X509Certificate)
            });
        }
        let basic = MqttBasic {
            client_id: text(ColumnKind::MqttClientId),
            user_name: text(ColumnKind::MqttUserName),
            password: text(ColumnKind::MqttPassword),
        };
        if basic != MqttBasic::default() {
            return Some(DeviceCredentials {
                credentials_value: Some(json!(basic).to_string()),
                ..of_type(CredentialsType::MqttBasic)
            });
        }
        Some(DeviceCredentials {
            credentials_id: Some(text(ColumnKind::AccessToken)?),
            ..of_type(CredentialsType::AccessToken)
        })
    }

    /// What the line says of the device; the rest stays.
    fn put_into(&self, device: &mut Device) {
        if let Some(kind) = self.get(ColumnKind::Type).filter(|kind| *kind != device.kind) {
            (device.kind, device.device_profile_id) = (kind.to_owned(), None);
        }
        if let Some(label) = self.get(ColumnKind::Label) {
            device.label = Some(label.to_owned());
        }
        let description = self
            .get(ColumnKind::Description)
            .map(|text| ("description", json!(text)));
        let is_gateway = self.get(ColumnKind::IsGateway);
        let is_gateway = is_gateway.map(|text| ("gateway", json!(text.eq_ignore_ascii_case("true"))));
        for (name, value) in [description, is_gateway].into_iter().flatten() {
            let info = device.additional_info.get_or_insert_default();
            if !info.is_object() {
                *info = json!({});
            }
            info[name] = value;
        }
    }
}

fn save_device(call: &Call, fields: &Fields<'_>) -> Result<(bool, Device), Failure> {
    let name = fields.get(ColumnKind::Name).unwrap_or_default();
    let found: Option<Device> = call.entities().find_by_name(call.tenant().0, name)?;
    let mut device = found.unwrap_or_else(|| Device {
        name: name.to_owned(),
        ..Device::default()
    });
    // Over whatever somebody else changes meanwhile.
    device.version = None;
    fields.put_into(&mut device);
    let (device, stored) = prepare(call, device)?;
    let (entities, now_ms) = (call.entities(), call.now_ms);
    let saved = match (&stored, fields.credentials()) {
        (None, Some(credentials)) => entities.save_device_with_credentials(device, credentials, now_ms)?,
        // First what is refused more easily: another device may have the same.
        (Some(stored), Some(credentials)) => {
            change_credentials(call, stored, credentials)?;
            entities.save_device(device, None, now_ms)?
        }
        (_, None) => entities.save_device(device, None, now_ms)?,
    };
    follow(call, &saved, stored.as_ref())?;
    let Json(saved) = call.saved(stored.is_none(), saved);
    Ok((stored.is_none(), saved))
}

/// Whoever is connected with the old ones goes.
fn change_credentials(call: &Call, device: &Device, wanted: DeviceCredentials) -> Result<(), Failure> {
    let id = device.id.unwrap_or_default();
    let stored = call.entities().device_credentials(id)?;
    let wanted = DeviceCredentials {
        id: stored.id,
        device_id: id,
        ..wanted
    };
    let saved = call.entities().save_device_credentials(wanted, call.now_ms)?;
    let of = |credentials: &DeviceCredentials| {
        (
            credentials.credentials_id.clone(),
            credentials.credentials_value.clone(),
        )
    };
    if of(&saved) != of(&stored) {
        call.world.device_changed(id);
    }
    Ok(())
}

/// Lines of RFC 4180 with any delimiter, one after the other. They may end with a line feed alone; empty ones are none.
struct Rows<'a> {
    letters: Peekable<Chars<'a>>,
    delimiter: char,
    /// Of a line; what is beyond is left out.
    fields_max: usize,
}

impl<'a> Rows<'a> {
    fn new(text: &'a str, delimiter: char, fields_max: usize) -> Rows<'a> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Rows {
            letters: text.chars().peekable(),
            delimiter,
            fields_max,
        }
    }

    fn put(&self, row: &mut Vec<String>, field: &mut String) {
        let field = std::mem::take(field);
        if row.len() < self.fields_max {
            row.push(field);
        }
    }
}

impl Iterator for Rows<'_> {
    type Item = Vec<String>;

    fn next(&mut self) -> Option<Vec<String>> {
        let (mut row, mut field) = (Vec::new(), String::new());
        let (mut is_quoted, mut had_quotes) = (false, false);
        while let Some(letter) = self.letters.next() {
            match letter {
                '"' if is_quoted && self.letters.next_if_eq(&'"').is_some() => field.push('"'),
                '"' if is_quoted => is_quoted = false,
                '"' if field.is_empty() => (is_quoted, had_quotes) = (true, true),
                _ if is_quoted => field.push(letter),
                '\r' if self.letters.peek() == Some(&'\n') => {}
                '\r' | '\n' if row.is_empty() && field.is_empty() && !had_quotes => {}
                '\r' | '\n' => {
                    self.put(&mut row, &mut field);
                    return Some(row);
                }
                _ if letter == self.delimiter => {
                    self.put(&mut row, &mut field);
                    had_quotes = false;
                }
                _ => field.push(letter),
            }
        }
        if row.is_empty() && field.is_empty() && !had_quotes {
            return None;
        }
        self.put(&mut row, &mut field);
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::Rows;

    #[test]
    fn tables_are_read_as_rfc_4180_has_them() {
        let cases: [(&str, char, &[&[&str]]); 8] = [
            ("", ',', &[]),
            ("a,b\r\nc,d\r\n", ',', &[&["a", "b"], &["c", "d"]]),
            ("a;b\n\n\nc;\n", ';', &[&["a", "b"], &["c", ""]]),
            ("\u{feff}name\nü", ',', &[&["name"], &["ü"]]),
            (
                "\"a,b\",\"say \"\"hi\"\"\",\"two\r\nlines\"",
                ',',
                &[&["a,b", "say \"hi\"", "two\r\nlines"]],
            ),
            ("\"\",x\n\"\"", ',', &[&["", "x"], &[""]]),
            ("a\"b,c", ',', &[&["a\"b", "c"]]),
            ("a\rb", ',', &[&["a"], &["b"]]),
        ];
        for (text, delimiter, expected) in cases {
            let rows: Vec<_> = Rows::new(text, delimiter, 3).collect();
            assert_eq!(rows, expected, "{text:?}");
        }
        let long: Vec<_> = Rows::new("a,b,c,d,e\nf", ',', 3).collect();
        assert_eq!(long, [vec!["a", "b", "c"], vec!["f"]]);
    }
}
