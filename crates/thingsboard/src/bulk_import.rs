//! Bulk import of devices from CSV, with a mapping of its columns. A line is one device. An invalid line is reported as
//! an error, and the other lines are imported.

use std::iter::Peekable;
use std::str::Chars;
use std::time::{Duration, Instant};

use axum::Json;
use devices::{PendingAppend, WaitingChange};
use platform::decode::{DecodeLimits, attributes};
use platform::ids::EntityId;
use platform::model::{AttributeScope, CredentialsType, Device, DeviceCredentials, MqttBasic};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::authorities::Authorities;
use super::call::ApiCall;
use super::devices::{handle_profile_change, prepare};
use super::failure::ThingsboardError;
use super::operation::{HandlerResult, JsonBody, NoQuery, post};
use super::platform_access::{full, not_saved};
use super::values::typed;
use crate::services::Endpoint;

/// Limit of values that are being written to the log.
const KEPT_MAX: usize = 1000;
/// Time in which attributes of these values are processed. After that their errors are only events of the devices.
const PROCESSED_WITHIN: Duration = Duration::from_secs(10);
/// Limit of errors in the answer. All errors are counted.
const ERRORS_TOLD_MAX: usize = 10_000;

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        post(
            "/api/device/bulk_import",
            "import_devices",
            Authorities::TENANT_ADMIN,
            import_devices,
        )
        .tag("Devices")
        .describe(
            "Import devices",
            "`file` is CSV. `mapping.columns` gives the type of each column: NAME, TYPE, LABEL, DESCRIPTION, IS_GATEWAY, ACCESS_TOKEN, X509, \
             MQTT_CLIENT_ID, MQTT_USER_NAME, MQTT_PASSWORD, or SHARED_ATTRIBUTE, SERVER_ATTRIBUTE and TIMESERIES with a `key`. Also \
             `mapping.delimiter` and `mapping.header`. Devices are found by name. Attributes and time series of existing devices are \
             only saved with `mapping.update`. Empty values change nothing.",
        )
        .returns_json("Numbers of created, updated and rejected devices, and errors with their line numbers."),
    ]
}

#[derive(Deserialize)]
struct Import {
    file: String,
    mapping: Mapping,
}

#[derive(Deserialize)]
struct Mapping {
    columns: Vec<ImportColumn>,
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
struct ImportColumn {
    #[serde(rename = "type")]
    kind: ColumnKind,
    #[serde(default)]
    key: Option<String>,
}

/// ThingsBoard's `BulkImportColumnType`.
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
    /// Marks a LwM2M device.
    Lwm2mClientEndpoint,
    SharedAttribute,
    ServerAttribute,
    Timeseries,
    /// Other columns of LwM2M and SNMP, and columns of edges.
    #[serde(
        rename = "LWM2M_CLIENT_SECURITY_CONFIG_MODE",
        alias = "LWM2M_CLIENT_IDENTITY",
        alias = "LWM2M_CLIENT_KEY",
        alias = "LWM2M_CLIENT_CERT",
        alias = "LWM2M_BOOTSTRAP_SERVER_SECURITY_MODE",
        alias = "LWM2M_BOOTSTRAP_SERVER_PUBLIC_KEY_OR_ID",
        alias = "LWM2M_BOOTSTRAP_SERVER_SECRET_KEY",
        alias = "LWM2M_SERVER_SECURITY_MODE",
        alias = "LWM2M_SERVER_CLIENT_PUBLIC_KEY_OR_ID",
        alias = "LWM2M_SERVER_CLIENT_SECRET_KEY",
        alias = "SNMP_HOST",
        alias = "SNMP_PORT",
        alias = "SNMP_VERSION",
        alias = "SNMP_COMMUNITY_STRING",
        alias = "EDGE_LICENSE_KEY",
        alias = "CLOUD_ENDPOINT",
        alias = "ROUTING_KEY",
        alias = "SECRET"
    )]
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
    fn refuse(&mut self, line: usize, why: &ThingsboardError) {
        self.errors += 1;
        if self.errors_list.len() < ERRORS_TOLD_MAX {
            self.errors_list.push(format!("Line {line}: {}", why.message()));
        }
    }
}

fn import_devices(call: &ApiCall, (): (), _: NoQuery, JsonBody(import): JsonBody<Import>) -> HandlerResult<Imported> {
    let Import { file, mapping } = import;
    let is_quote_or_end = ['"', '\r', '\n'].contains(&mapping.delimiter);
    if is_quote_or_end {
        return Err(ThingsboardError::bad_request(
            "The delimiter must not be a quote or a line break",
        ));
    }
    let mut imported = Imported::default();
    let mut values = Vec::new();
    let rows = CsvRows::new(&file, mapping.delimiter, mapping.columns.len() + 1);
    for (index, row) in rows.enumerate().skip(usize::from(mapping.header)) {
        let line = index + 1;
        match import_row(call, &mapping, &row) {
            Ok((is_new, pending)) => {
                *(if is_new {
                    &mut imported.created
                } else {
                    &mut imported.updated
                }) += 1;
                values.extend(pending.into_iter().map(|pending| (line, pending)));
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

/// Values of a line that are being written.
enum PendingValues {
    Telemetry(PendingAppend),
    Attributes(WaitingChange),
}

/// Waits for all values together, because the log syncs many at once.
fn wait(values: &mut Vec<(usize, PendingValues)>, imported: &mut Imported) {
    let until = Instant::now() + PROCESSED_WITHIN;
    for (line, pending) in values.drain(..) {
        let written = match pending {
            PendingValues::Telemetry(pending) => pending.wait().map_err(full),
            PendingValues::Attributes(change) => change.wait_until(until).map_err(not_saved),
        };
        if let Err(failure) = written {
            imported.refuse(line, &failure);
        }
    }
}

/// Returns whether the device is new, and the values that are being written to the log.
fn import_row(
    call: &ApiCall,
    mapping: &Mapping,
    row: &[String],
) -> Result<(bool, Vec<PendingValues>), ThingsboardError> {
    if row.len() > mapping.columns.len() {
        let text = format!("more values than the {} columns", mapping.columns.len());
        return Err(ThingsboardError::bad_request(text));
    }
    let columns = mapping.columns.iter().zip(row);
    let fields = LineFields(columns.filter(|(_, value)| !value.is_empty()).collect());
    let (is_new, device) = save_device(call, &fields)?;
    let mut pending = Vec::new();
    if is_new || mapping.update {
        let entity = device.id.unwrap_or_default().entity();
        pending.extend(save_attributes(
            call,
            entity,
            AttributeScope::SharedScope,
            &fields.values(ColumnKind::SharedAttribute),
        )?);
        pending.extend(save_attributes(
            call,
            entity,
            AttributeScope::ServerScope,
            &fields.values(ColumnKind::ServerAttribute),
        )?);
        let points = fields.values(ColumnKind::Timeseries);
        if !points.is_empty() {
            pending.push(PendingValues::Telemetry(call.platform_access.append_telemetry(
                entity,
                json!(points).to_string().as_bytes(),
                call.now_ms,
            )?));
        }
    }
    Ok((is_new, pending))
}

fn save_attributes(
    call: &ApiCall,
    entity: EntityId,
    scope: AttributeScope,
    values: &Map<String, Value>,
) -> Result<Option<PendingValues>, ThingsboardError> {
    if values.is_empty() {
        return Ok(None);
    }
    let texts = json!(values).to_string();
    let values = attributes(texts.as_bytes(), &DecodeLimits::default());
    let values = values.map_err(|error| ThingsboardError::bad_request(error.to_string()))?;
    let typed = values.iter().map(|value| (&*value.key, typed(&value.value)));
    let body = Value::Object(typed.map(|(key, value)| (key.to_owned(), value)).collect()).to_string();
    let pending = call
        .platform_access
        .append_attributes((entity, scope), body.as_bytes(), call.now_ms);
    pending.map(|change| Some(PendingValues::Attributes(change)))
}

/// The non-empty fields of one line.
struct LineFields<'a>(Vec<(&'a ImportColumn, &'a String)>);

impl LineFields<'_> {
    fn get(&self, kind: ColumnKind) -> Option<&str> {
        let mut found = self.0.iter().filter(|(column, _)| column.kind == kind);
        found.next_back().map(|(_, value)| value.as_str())
    }

    /// Values by key. A CSV file only contains text: numbers are parsed like those of devices.
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

    /// `None`: a new device gets a random token, an existing one keeps its credentials.
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

    /// Sets the device's properties that the line contains.
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

fn save_device(call: &ApiCall, fields: &LineFields<'_>) -> Result<(bool, Device), ThingsboardError> {
    let name = fields.get(ColumnKind::Name).unwrap_or_default();
    let found: Option<Device> = call.entities().find_by_name(call.tenant().0, name)?;
    let mut device = found.unwrap_or_else(|| Device {
        name: name.to_owned(),
        ..Device::default()
    });
    // Overwrites changes by other users.
    device.version = None;
    fields.put_into(&mut device);
    let (device, stored) = prepare(call, device)?;
    let (entities, now_ms) = (call.entities(), call.now_ms);
    let saved = match (&stored, fields.credentials()) {
        (None, Some(credentials)) => entities.save_device_with_credentials(device, credentials, now_ms)?,
        // Credentials first, because they are more likely to be rejected: another device may have the same.
        (Some(stored), Some(credentials)) => {
            change_credentials(call, stored, credentials)?;
            entities.save_device(device, None, now_ms)?
        }
        (_, None) => entities.save_device(device, None, now_ms)?,
    };
    handle_profile_change(call, &saved, stored.as_ref())?;
    let Json(saved) = call.saved(stored.is_none(), saved);
    Ok((stored.is_none(), saved))
}

/// Disconnects clients that use the old credentials.
fn change_credentials(call: &ApiCall, device: &Device, wanted: DeviceCredentials) -> Result<(), ThingsboardError> {
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
        call.platform_access.device_changed(id);
    }
    Ok(())
}

/// Iterates over lines in the format of RFC 4180 with any delimiter. Lines may end with a line feed only. Empty lines
/// are skipped.
struct CsvRows<'a> {
    letters: Peekable<Chars<'a>>,
    delimiter: char,
    /// Further fields of a line are ignored.
    fields_max: usize,
}

impl<'a> CsvRows<'a> {
    fn new(text: &'a str, delimiter: char, fields_max: usize) -> CsvRows<'a> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        CsvRows {
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

impl Iterator for CsvRows<'_> {
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
    use super::CsvRows;

    #[test]
    fn csv_is_parsed_as_rfc_4180_specifies() {
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
            let rows: Vec<_> = CsvRows::new(text, delimiter, 3).collect();
            assert_eq!(rows, expected, "{text:?}");
        }
        let long: Vec<_> = CsvRows::new("a,b,c,d,e\nf", ',', 3).collect();
        assert_eq!(long, [vec!["a", "b", "c"], vec!["f"]]);
    }
}
