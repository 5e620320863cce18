//! Export of time series as CSV and Parquet.

use std::io::Read;

use bytes::Bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use serde_json::{Value, json};

use super::server::{CUSTOMER, Server, TENANT, refused};
use super::web;

fn export(server: &Server, id: &str, query: &str) -> String {
    let answer = server
        .get(&format!("/api/plugins/telemetry/DEVICE/{id}/export/timeseries{query}"))
        .ok();
    assert_eq!(answer.header("content-type"), "text/csv; charset=utf-8; header=present");
    assert_eq!(
        answer.header("content-disposition"),
        format!("attachment; filename=\"{id}.csv\"")
    );
    assert_eq!(answer.header("transfer-encoding"), "chunked");
    whole(&answer.body)
}

/// Joins the chunks of a body; the last chunk is empty.
fn whole(mut chunks: &str) -> String {
    let mut text = String::new();
    loop {
        let (size, rest) = chunks.split_once("\r\n").expect("a chunk");
        let size = usize::from_str_radix(size, 16).expect("the chunk size");
        if size == 0 {
            return text;
        }
        text.push_str(&rest[..size]);
        chunks = rest[size..].strip_prefix("\r\n").expect("the end of the chunk");
    }
}

fn save(server: &Server, id: &str, telemetry: &Value) {
    let path = format!("/api/plugins/telemetry/DEVICE/{id}/timeseries/ANY");
    server.post(&path, telemetry.clone()).ok();
}

#[test]
fn points_are_exported_unchanged() {
    let server = Server::start();
    let id = server.device("A");
    assert_eq!(export(&server, &id, ""), "key,ts,type,value\r\n");
    let telemetry = json!([
        {"ts": 2000, "values": {"a": 2, "b": "x,\"y\"\r\nz"}},
        {"ts": 1000, "values": {"a": 1.5, "b": true}},
        {"ts": 3000, "values": {"a": {"c": [1]}}},
    ]);
    save(&server, &id, &telemetry);
    server.wait_for(
        &format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=a"),
        |latest| latest["a"][0]["ts"] == 3000,
    );
    let a = "a,1000,double,1.5\r\na,2000,long,2\r\na,3000,json,\"{\"\"c\"\":[1]}\"\r\n";
    let b = "b,1000,bool,true\r\nb,2000,string,\"x,\"\"y\"\"\r\nz\"\r\n";
    let head = "key,ts,type,value\r\n";
    assert_eq!(export(&server, &id, ""), format!("{head}{a}{b}"));
    assert_eq!(export(&server, &id, "?keys=b,unknown"), format!("{head}{b}"));
    assert_eq!(
        export(&server, &id, "?keys=a&startTs=1001&endTs=3000"),
        format!("{head}a,2000,long,2\r\n")
    );
}

/// The series is many times larger than the buffers of an export.
#[test]
fn long_series_is_exported_completely() {
    const POINTS: i64 = 100_000;
    let server = Server::start();
    let id = server.device("A");
    let all: Vec<i64> = (1..=POINTS).collect();
    for part in all.chunks(5_000) {
        let telemetry: Vec<Value> = part
            .iter()
            .map(|ts| json!({"ts": ts, "values": {"a": ts * 7}}))
            .collect();
        save(&server, &id, &telemetry.into());
    }
    server.wait_for(
        &format!("/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys=a"),
        |latest| latest["a"][0]["ts"] == POINTS,
    );
    let text = export(&server, &id, "?keys=a");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("key,ts,type,value"));
    for ts in 1..=POINTS {
        assert_eq!(lines.next(), Some(&*format!("a,{ts},long,{}", ts * 7)));
    }
    assert_eq!(lines.next(), None);
}

/// Returns header and body of an answer with a binary, chunked body.
fn request_file(server: &Server, target: &str) -> (String, Vec<u8>) {
    let token = format!("Bearer {}", server.token(TENANT));
    let mut stream = web::connect(server.node.address);
    web::send(&mut stream, "GET", target, &[("X-Authorization", &token)], "");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let line_end = |bytes: &[u8], end: &[u8]| bytes.windows(end.len()).position(|found| found == end).unwrap();
    let head = line_end(&bytes, b"\r\n\r\n");
    let (mut body, mut at) = (Vec::new(), head + 4);
    loop {
        let digits = line_end(&bytes[at..], b"\r\n");
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[at..at + digits]).unwrap(), 16).unwrap();
        at += digits + 2;
        if size == 0 {
            return (String::from_utf8(bytes[..head].to_vec()).unwrap(), body);
        }
        body.extend_from_slice(&bytes[at..at + size]);
        at += size + 2;
    }
}

/// Other tests check the contents of Parquet files. This one checks that the complete file arrives.
#[test]
fn points_are_exported_as_parquet() {
    let server = Server::start();
    let id = server.device("A");
    let telemetry: Vec<Value> = (1..=3000)
        .map(|ts| json!({"ts": ts, "values": {"a": ts * 7, "b": format!("text {ts} {}", ts * 7919)}}))
        .collect();
    save(&server, &id, &telemetry.into());
    let path = format!("/api/plugins/telemetry/DEVICE/{id}");
    server.wait_for(&format!("{path}/values/timeseries?keys=a"), |latest| {
        latest["a"][0]["ts"] == 3000
    });
    let (head, file) = request_file(&server, &format!("{path}/export/timeseries?format=parquet&startTs=11"));
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("content-type: application/vnd.apache.parquet"), "{head}");
    assert!(head.contains(&format!("filename=\"{id}.parquet\"")), "{head}");
    let reader = SerializedFileReader::new(Bytes::from(file)).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 2 * 2990);
    for (row, ts) in rows.iter().zip(11..=3000) {
        assert_eq!(
            (
                row.get_string(0).unwrap().as_str(),
                row.get_timestamp_millis(1).unwrap()
            ),
            ("a", ts)
        );
        assert_eq!(row.get_long(3).unwrap(), ts * 7);
    }
    let last = rows.last().unwrap();
    assert_eq!(
        (last.get_string(0).unwrap(), last.get_string(5).unwrap()),
        (&"b".to_owned(), &"text 3000 23757000".to_owned())
    );

    let document: Value = server.send("GET", "/v3/api-docs", None, "").ok().json();
    let export = &document["paths"]["/api/plugins/telemetry/{entityType}/{entityId}/export/timeseries"]["get"];
    let types = export["responses"]["200"]["content"].as_object().unwrap();
    assert!(types.contains_key("text/csv") && types.contains_key("application/vnd.apache.parquet"));
    refused(&server.get(&format!("{path}/export/timeseries?format=xml")), 400, 31);
}

#[test]
fn export_needs_read_access() {
    let server = Server::start();
    let id = server.device("A");
    let path = format!("/api/plugins/telemetry/DEVICE/{id}/export/timeseries");
    refused(&server.send("GET", &path, None, ""), 401, 10);
    refused(&server.as_user(CUSTOMER, "GET", &path, &Value::Null), 403, 20);
    server
        .post(&format!("/api/customer/{}/device/{id}", server.customer()), Value::Null)
        .ok();
    server.as_user(CUSTOMER, "GET", &path, &Value::Null).ok();
    refused(&server.get(&format!("{path}?startTs=5&endTs=5")), 400, 31);
    refused(&server.get(&format!("{path}?startTs=x")), 400, 31);
    let nobody = "/api/plugins/telemetry/DEVICE/784f394c-42b6-11ec-8000-000000000000/export/timeseries";
    refused(&server.get(nobody), 404, 32);
    refused(&server.get("/api/plugins/telemetry/THING/x/export/timeseries"), 400, 31);
}
