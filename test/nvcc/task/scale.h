#pragma once

#define HEADER_SAYS "header found"
