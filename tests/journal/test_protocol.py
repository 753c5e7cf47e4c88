"""The wire: names, tags and bytes that clients of the original rely on (reference, 2 to 5 and 27)."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from penstock.journal import protocol
from penstock.journal.protocol import journal_pb2, penstock_pb2

SCALARS = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_FIXED32: "fixed32",
    FieldDescriptor.TYPE_FIXED64: "fixed64",
}

# Field lists in the notation `tag name type`; `*` marks a repeated field.
MESSAGES = {
    "Label": "1 name string, 2 value string, 3 prefix bool",
    "LabelSet": "1 labels *Label",
    "LabelSelector": "1 include LabelSet, 2 exclude LabelSet",
    "JournalSpec": (
        "1 name string, 2 replication int32, 3 labels LabelSet, 4 fragment JournalSpec.Fragment, "
        "6 flags uint32, 7 max_append_rate int64, 8 suspend JournalSpec.Suspend"
    ),
    "JournalSpec.Fragment": (
        "1 length int64, 2 compression_codec CompressionCodec, 3 stores *string, "
        "4 refresh_interval google.protobuf.Duration, 5 retention google.protobuf.Duration, "
        "6 flush_interval google.protobuf.Duration, 7 path_postfix_template string"
    ),
    "JournalSpec.Suspend": "1 level JournalSpec.Suspend.Level, 2 offset int64",
    "ProcessSpec": "1 id ProcessSpec.ID, 2 endpoint string",
    "ProcessSpec.ID": "1 zone string, 2 suffix string",
    "BrokerSpec": (
        "1 process_spec ProcessSpec, 2 journal_limit uint32, 3 exiting bool, "
        "100 penstock bool"  # ours, which the original skips, as are the others with that number
    ),
    "Fragment": (
        "1 journal string, 2 begin int64, 3 end int64, 4 sum SHA1Sum, "
        "5 compression_codec CompressionCodec, 6 backing_store string, 7 mod_time int64, "
        "8 path_postfix string"
    ),
    "SHA1Sum": "1 part1 fixed64, 2 part2 fixed64, 3 part3 fixed32",
    "ReadRequest": (
        "1 header Header, 2 journal string, 3 offset int64, 4 block bool, 5 do_not_proxy bool, "
        "6 metadata_only bool, 7 end_offset int64, 8 begin_mod_time int64, 9 min_etcd_revision int64"
    ),
    "ReadResponse": (
        "1 status Status, 2 header Header, 3 offset int64, 4 write_head int64, 5 fragment Fragment, "
        "6 fragment_url string, 7 content bytes"
    ),
    "AppendRequest": (
        "1 header Header, 2 journal string, 3 do_not_proxy bool, 4 content bytes, 5 offset int64, "
        "6 check_registers LabelSelector, 7 union_registers LabelSet, 8 subtract_registers LabelSet, "
        "9 suspend AppendRequest.Suspend, 10 min_etcd_revision int64"
    ),
    "AppendResponse": (
        "1 status Status, 2 header Header, 3 commit Fragment, 4 registers LabelSet, "
        "5 total_chunks int64, 6 delayed_chunks int64, 7 store_health_error string"
    ),
    "ReplicateRequest": (
        "1 header Header, 2 deprecated_journal string, 3 proposal Fragment, 4 content bytes, "
        "5 content_delta int64, 6 acknowledge bool, 7 registers LabelSet, 100 confirmed int64"
    ),
    "ReplicateResponse": "1 status Status, 2 header Header, 3 fragment Fragment, 4 registers LabelSet",
    "ListRequest": ("1 selector LabelSelector, 4 watch bool, 5 watch_resume Header, 100 store_health bool"),
    "ListResponse": "1 status Status, 2 header Header, 3 journals *ListResponse.Journal",
    "ListResponse.Journal": (
        "1 spec JournalSpec, 2 mod_revision int64, 3 route Route, 4 create_revision int64, "
        "100 store_health ListResponse.StoreHealth"
    ),
    "ListResponse.StoreHealth": "1 known *ListResponse.StoreHealth.Store",
    "ListResponse.StoreHealth.Store": "1 fragment_store string, 2 error string",
    "ApplyRequest": "1 changes *ApplyRequest.Change",
    "ApplyRequest.Change": "1 expect_mod_revision int64, 2 upsert JournalSpec, 3 delete string",
    "ApplyResponse": "1 status Status, 2 header Header",
    "FragmentsRequest": (
        "1 header Header, 2 journal string, 3 begin_mod_time int64, 4 end_mod_time int64, "
        "5 next_page_token int64, 6 page_limit int32, 7 signatureTTL google.protobuf.Duration, "
        "8 do_not_proxy bool"
    ),
    "FragmentsResponse": (
        "1 status Status, 2 header Header, 3 fragments *FragmentsResponse._Fragment, 4 next_page_token int64"
    ),
    "FragmentsResponse._Fragment": "1 spec Fragment, 2 signed_url string",
    "Route": "1 members *ProcessSpec.ID, 2 primary int32, 3 endpoints *string",
    "Header": "1 process_id ProcessSpec.ID, 2 route Route, 3 etcd Header.Etcd",
    "Header.Etcd": "1 cluster_id uint64, 2 member_id uint64, 3 revision int64, 4 raft_term uint64",
    "FragmentStoreHealthRequest": (
        "1 fragment_store string, 2 check_delete bool, 3 check_delete_prefix string"
    ),
    "FragmentStoreHealthResponse": "1 status Status, 2 header Header, 3 store_health_error string",
}

STATUSES = (
    *("OK", "JOURNAL_NOT_FOUND", "NO_JOURNAL_PRIMARY_BROKER", "NOT_JOURNAL_PRIMARY_BROKER"),
    *("INSUFFICIENT_JOURNAL_BROKERS", "NOT_JOURNAL_BROKER", "OFFSET_NOT_YET_AVAILABLE", "WRONG_ROUTE"),
    *("PROPOSAL_MISMATCH", "ETCD_TRANSACTION_FAILED", "NOT_ALLOWED", "WRONG_APPEND_OFFSET"),
    *("INDEX_HAS_GREATER_OFFSET", "REGISTER_MISMATCH", "SUSPENDED", "FRAGMENT_STORE_UNHEALTHY"),
)

ENUMS = {
    "Status": dict(zip(STATUSES, range(16), strict=True)),
    "CompressionCodec": {
        "INVALID": 0,
        "NONE": 1,
        "GZIP": 2,
        "ZSTANDARD": 3,
        "SNAPPY": 4,
        "GZIP_OFFLOAD_DECOMPRESSION": 5,
    },
    "JournalSpec.Flag": {"NOT_SPECIFIED": 0, "O_RDONLY": 1, "O_WRONLY": 2, "O_RDWR": 4},
    "JournalSpec.Suspend.Level": {"NONE": 0, "PARTIAL": 1, "FULL": 2},
    "AppendRequest.Suspend": {
        "SUSPEND_RESUME": 0,
        "SUSPEND_NO_RESUME": 1,
        "SUSPEND_IF_FLUSHED": 2,
        "SUSPEND_NOW": 3,
        "SUSPEND_KEEP": 4,
    },
}

# Method: request, response, whether the client and the server stream.
METHODS = {
    "List": ("ListRequest", "ListResponse", False, True),
    "Apply": ("ApplyRequest", "ApplyResponse", False, False),
    "Read": ("ReadRequest", "ReadResponse", False, True),
    "Append": ("AppendRequest", "AppendResponse", True, False),
    "Replicate": ("ReplicateRequest", "ReplicateResponse", True, True),
    "ListFragments": ("FragmentsRequest", "FragmentsResponse", False, False),
    "FragmentStoreHealth": ("FragmentStoreHealthRequest", "FragmentStoreHealthResponse", False, False),
}

RESERVED = {"JournalSpec": [5], "ListRequest": [2, 3], "ListResponse": [4]}


def message_of(name: str) -> Descriptor:
    outer, *inner = name.split(".")
    message = journal_pb2.DESCRIPTOR.message_types_by_name[outer]
    for part in inner:
        message = message.nested_types_by_name[part]
    return message


def described(message: Descriptor) -> str:
    return ", ".join(f"{field.number} {field.name} {type_of(field)}" for field in message.fields)


def type_of(field: FieldDescriptor) -> str:
    composite = field.message_type or field.enum_type
    name = composite.full_name.removeprefix("protocol.") if composite else SCALARS[field.type]
    return f"*{name}" if field.is_repeated else name


def all_messages() -> set[str]:
    names: set[str] = set()

    def walk(message: Descriptor) -> None:
        names.add(message.full_name.removeprefix("protocol."))
        for nested in message.nested_types:
            walk(nested)

    for message in journal_pb2.DESCRIPTOR.message_types_by_name.values():
        walk(message)
    return names


@pytest.mark.parametrize("name", MESSAGES)
def test_fields_have_the_tags_and_types_of_the_reference(name: str) -> None:
    assert described(message_of(name)) == MESSAGES[name]


def test_there_is_no_message_beyond_the_reference() -> None:
    assert all_messages() == set(MESSAGES)


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_the_numbers_of_the_reference(name: str) -> None:
    outer, _, inner = name.rpartition(".")
    enums = message_of(outer).enum_types_by_name if outer else journal_pb2.DESCRIPTOR.enum_types_by_name
    assert {value.name: value.number for value in enums[inner].values} == ENUMS[name]


@pytest.mark.parametrize("name", RESERVED)
def test_tags_that_must_stay_unused_are_reserved(name: str) -> None:
    proto = DescriptorProto()
    message_of(name).CopyToProto(proto)
    ranges = [tag for span in proto.reserved_range for tag in range(span.start, span.end)]
    assert ranges == RESERVED[name]


def test_the_service_has_the_methods_of_the_reference() -> None:
    service = journal_pb2.DESCRIPTOR.services_by_name["Journal"]
    assert service.full_name == protocol.JOURNAL_SERVICE == "protocol.Journal"
    methods = {
        method.name: (
            method.input_type.name,
            method.output_type.name,
            method.client_streaming,
            method.server_streaming,
        )
        for method in service.methods
    }
    assert methods == METHODS


def test_our_own_service_stands_beside_it() -> None:
    service = penstock_pb2.DESCRIPTOR.services_by_name["Local"]
    assert service.full_name == protocol.LOCAL_SERVICE == "penstock.Local"
    assert [method.name for method in service.methods] == ["Append", "Appends", "Locate", "Heads"]
    upkeep = penstock_pb2.DESCRIPTOR.services_by_name["Maintenance"]
    assert upkeep.full_name == protocol.MAINTENANCE_SERVICE == "penstock.Maintenance"
    assert [method.name for method in upkeep.methods] == ["Trim", "Roll"]
    span = protocol.Span(begin=1, end=2, path="/x", position=3)
    span.compression_codec = protocol.CompressionCodec.SNAPPY
    assert span.SerializeToString().hex() == "080110021a022f7820032804"


def test_json_names_are_lower_camel_case_and_signature_ttl_is_spelled_so() -> None:
    names = {field.name: field.json_name for field in message_of("FragmentsRequest").fields}
    assert names["signatureTTL"] == "signatureTTL"
    assert names["begin_mod_time"] == "beginModTime"


def test_sha1_sum_on_the_wire() -> None:
    message = protocol.SHA1Sum(part1=0x8843D7F92416211D, part2=0xE9EBB963FF4CE281, part3=0x25932878)
    assert message.SerializeToString().hex() == "091d211624f9d743881181e24cff63b9ebe91d78289325"


def test_an_empty_route_on_the_wire_has_primary_minus_one() -> None:
    assert protocol.Route(primary=-1).SerializeToString().hex() == "10ffffffffffffffffff01"
    assert protocol.Route().SerializeToString() == b""  # which clients of the original reject


def test_a_route_on_the_wire_as_assignments_store_it() -> None:
    route = protocol.Route(
        members=[
            protocol.ProcessSpec.ID(zone="zone-a", suffix="broker-1"),
            protocol.ProcessSpec.ID(zone="zone-b", suffix="broker-2"),
        ]
    )
    assert route.SerializeToString().hex() == (
        "0a120a067a6f6e652d61120862726f6b65722d310a120a067a6f6e652d62120862726f6b65722d32"
    )


def test_empty_registers_can_be_present_in_an_append_response() -> None:
    response = protocol.AppendResponse()
    assert not response.HasField("registers")
    response.registers.SetInParent()
    assert response.SerializeToString().hex() == "2200"
    assert protocol.AppendResponse.FromString(bytes.fromhex("2200")).HasField("registers")


def test_generated_code_loads_with_the_oldest_runtime_we_allow() -> None:
    source = Path(journal_pb2.__file__).read_text()
    assert "# Protobuf Python Version: 6.31.1" in source


def test_generated_code_works_without_the_c_runtime() -> None:
    code = "from penstock.journal.protocol import Route; print(Route(primary=-1).SerializeToString().hex())"
    environment = {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "10ffffffffffffffffff01"
